"""What a GPU is and can do: its limits and rates, as CUDA tells them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from ....errors import UserError

MIN_CAPABILITY = 75
"""Turing. CUDA 13 compiles for nothing older."""
NEEDS = {"fp32": 75, "fp16": 75, "tf32": 80, "bf16": 80}
"""The compute capability from which on there are tensor cores for a precision."""


@dataclass(frozen=True)
class Device:
    """A GPU. Numbers of bytes and registers are limits; of blocks and threads, too.

    compute_capability: as CUDA's architectures are named, 90 for 9.0. shared_memory: of a block
    that asks for it; shared_memory_per_sm: of all blocks on a multiprocessor. clock: Hz.
    """

    number: int
    name: str
    compute_capability: int
    sm_count: int
    shared_memory: int
    shared_memory_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    clock: float
    total_memory: int

    @property
    def has_mma(self) -> bool:
        """Whether warps multiply tiles in tf32, bf16 and fp16, and copy to shared memory without
        waiting (mma.sync.m16n8k8 and k16, cp.async)."""
        return self.compute_capability >= 80

    @property
    def has_wgmma(self) -> bool:
        """Whether four warps multiply together, and copies of boxes overlap them (wgmma, TMA):
        instructions of Hopper, sm_90a, which no later GPU has."""
        return self.compute_capability == 90

    @property
    def has_dependent_launch(self) -> bool:
        """Whether a kernel may be launched before the one ahead of it has ended."""
        return self.compute_capability >= 90

    @property
    def reserved_shared_memory(self) -> int:
        """Bytes of shared memory that the system takes for each block."""
        return self.shared_memory_per_sm - self.shared_memory

    @property
    def enough_blocks(self) -> int:
        """Blocks that keep it busy, where each sums a part: four for each multiprocessor."""
        return 4 * self.sm_count

    @property
    def cycles_a_millisecond(self) -> float:
        """Of a busy multiprocessor: three quarters of the highest clock."""
        return self.clock * 0.75 / 1e3

    @property
    def default_precision(self) -> str:
        """tf32 where there is such a thing, as PyTorch's convolutions; else fp32."""
        return "tf32" if self.compute_capability >= NEEDS["tf32"] else "fp32"

    def refuse(self, precision: str) -> None:
        """UserError where nets cannot run on it, or not in this precision."""
        found = self.compute_capability
        what = f"GPU {self.number} ({self.name}, compute capability {found / 10:.1f})"
        if found < MIN_CAPABILITY:
            raise UserError(
                f"{what} is too old: osucaffe runs on Turing (7.5) and later; leave out --gpu"
            )
        if found < NEEDS[precision]:
            works = "fp16 or fp32" if precision == "bf16" else "fp32 or fp16"
            raise UserError(
                f"{what} has no {precision}, which begins with Ampere (8.0): "
                f"use --precision {works}"
            )


_CLOCK_RATE = 13
"""cudaDevAttrClockRate: in kHz."""


def describe(runtime: Any, number: int) -> Device:
    """The GPU of this number, by CuPy's module `cupy.cuda.runtime`."""
    properties = runtime.getDeviceProperties(number)  # cudaDeviceProp
    name = properties["name"]
    return Device(
        number=number,
        name=name.decode() if isinstance(name, bytes) else str(name),
        compute_capability=properties["major"] * 10 + properties["minor"],
        sm_count=properties["multiProcessorCount"],
        shared_memory=properties["sharedMemPerBlockOptin"],
        shared_memory_per_sm=properties["sharedMemPerMultiprocessor"],
        registers_per_sm=properties["regsPerMultiprocessor"],
        threads_per_sm=properties["maxThreadsPerMultiProcessor"],
        blocks_per_sm=properties["maxBlocksPerMultiProcessor"],
        clock=runtime.deviceGetAttribute(_CLOCK_RATE, number) * 1e3,
        total_memory=properties["totalGlobalMem"],
    )


@functools.cache
def _described(number: int) -> Device:
    from cupy.cuda import runtime

    return describe(runtime, number)


def current() -> Device:
    """The GPU that this thread uses."""
    from cupy.cuda import runtime

    return _described(runtime.getDevice())
