"""Owns what kernels with Hopper's own instructions have in common: what those in tf32 compute, and
the instruction that multiplies (kernels/headers/hopper.cuh has the others)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from ...tensor import Shape
from ..runtime.device import Device
from .problem import Problem


@dataclass(frozen=True)
class Correlation:
    """A convolution with stride 1 of images x to maps y, both (N, C, H, W), channels last."""

    x: Shape
    y: Shape
    kernel: Shape
    pad: Shape
    group: int

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The convolution of a problem, of stride 1."""
        return cls(problem.x, problem.y, problem.kernel, problem.window[1], problem.group)

    @property
    def channels(self) -> int:
        """Of a group."""
        return self.x[1] // self.group

    @property
    def outputs(self) -> int:
        """Of a group."""
        return self.y[1] // self.group

    @property
    def columns(self) -> int:
        """Weights of a filter."""
        return math.prod(self.kernel) * self.channels

    @property
    def work(self) -> int:
        """Multiplications."""
        return math.prod(self.y) * self.columns

    @property
    def macros(self) -> dict[str, int]:
        """What all kernels are told."""
        return {
            "G": self.group, "CG": self.channels, "OG": self.outputs, "OH": self.y[2],
            "OW": self.y[3], "KH": self.kernel[0], "KW": self.kernel[1], "PH": self.pad[0],
            "PW": self.pad[1],
        }  # fmt: skip


def correlates(device: Device, precision: str, problem: Problem) -> bool:
    """Whether a convolution may be a `Correlation` in tf32 on a device."""
    stride, _, dilation = problem.window
    fits = precision == "tf32" and len(problem.x) == 4 and {*stride, *dilation} == {1}
    return fits and device.has_wgmma


def good_enough(device: Device, problem: Problem) -> float:
    """Milliseconds: where one of our own kernels takes no longer for a convolution, libraries are
    not asked: for groups, few channels or gradients of filters in tf32 their plans hardly reach a
    quarter of what tensor cores can do, and take long to search."""
    rate = device.sm_count * device.clock * TF32_A_CYCLE * GOOD_SHARE
    return 2 * problem.work / rate * 1e3


TF32_A_CYCLE, GOOD_SHARE = 2048, 0.225
"""Additions and multiplications of a multiprocessor's tensor cores in a cycle; a share of them."""


def multiplication(outputs: int, *, from_registers: bool = False) -> str:
    """The instruction d (64 x outputs, of 128 threads) += a b, in C++.

    d: a thread's sums; b, a: operands in shared memory, or a: four words of each thread's.
    """
    sums, words = outputs // 2, 4 if from_registers else 1
    *places, right = (f"%{i}" for i in range(sums + words + 1))
    left = f"{{{', '.join(places[sums:])}}}" if from_registers else places[sums]
    given = [f'"r"((a)[{i}])' for i in range(words)] if from_registers else ['"l"(a)']
    constraints = ", ".join(f'"+f"((d)[{i}])' for i in range(sums))
    return (
        f'asm volatile("{{.reg .pred add; setp.eq.u32 add, 1, 1; '
        f"wgmma.mma_async.sync.aligned.m64n{outputs}k8.f32.tf32.tf32 "
        f"{{{', '.join(places[:sums])}}}, "
        f'{left}, {right}, add, 1, 1;}}" : {constraints} : {", ".join(given)}, "l"(b))'
    )
