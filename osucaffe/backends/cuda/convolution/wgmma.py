"""Owns what kernels with Hopper's own instructions have in common: what those in tf32 compute, and
the instruction that multiplies (kernels/headers/hopper.cuh has the others)."""

from __future__ import annotations

from ..runtime.device import Device
from .problem import Problem


def correlates(device: Device, precision: str, problem: Problem) -> bool:
    """Whether these kernels may compute a convolution on a device."""
    return precision == "tf32" and problem.is_dense and device.has_wgmma


def macros(problem: Problem) -> dict[str, int]:
    """What they all are told of it."""
    return {
        "G": problem.group, "CG": problem.channels, "OG": problem.outputs, "OH": problem.y[2],
        "OW": problem.y[3], "KH": problem.kernel[0], "KW": problem.kernel[1],
        "PH": problem.pad[0], "PW": problem.pad[1],
    }  # fmt: skip


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
