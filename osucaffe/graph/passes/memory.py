"""The memory plan: tensors whose live ranges do not overlap share memory.

A tensor is live from the first call that uses it to the last. Offsets are chosen greedily, large
tensors first, each the lowest that is free during its live range (Pisarchyk & Lee 2020,
arXiv 2001.03288, section 5).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...backends.backend import Backend
from ...backends.primitives.movement import is_feed
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Tensor
from .editing import owners

ALIGNMENT = 256
"""Tensors begin at multiples of this many bytes, as cuBLAS wants it of its scratch memory."""


@dataclass
class MemoryPlan:
    """Where each shared tensor begins, and the bytes needed with and without sharing."""

    offsets: list[tuple[Tensor, int]]
    size: int
    unshared: int
    persistent: list[Tensor]

    def join(self, later: MemoryPlan) -> None:
        """Let it hold what was planned later, too, which never runs at the same time."""
        self.offsets += later.offsets
        self.persistent += later.persistent
        self.size, self.unshared = max(self.size, later.size), self.unshared + later.unshared

    def __str__(self) -> str:
        return f"{self.size / 1e6:.1f} MB ({self.unshared / 1e6:.1f} MB if none were shared)"


@dataclass
class LiveRange:
    """A tensor with the first and the last time at which it is needed."""

    tensor: Tensor
    first: int
    last: int


def live_ranges(calls: Iterable[Primitive]) -> dict[Tensor, LiveRange]:
    """The live ranges of all tensors that the calls use and that have no memory yet: call i runs
    "at time i"."""
    ranges: dict[Tensor, LiveRange] = {}
    fed: set[Tensor] = set()
    for time, call in enumerate(calls):
        if is_feed(call):
            fed |= owners(call.written_tensors())
        end = time + call.overlap
        for tensor in (*call.written_tensors(), *call.read_tensors(), *call.scratch):
            owner = tensor.owner
            if owner.array is None and owner not in fed:
                live = ranges.setdefault(owner, LiveRange(owner, time, end))
                live.last = max(live.last, end)
    return ranges


def plan_memory(calls: Iterable[Primitive], size_of: Callable[[Tensor], int]) -> MemoryPlan:
    """Plan the memory of every tensor that the calls use and that has none yet.

    size_of gives a tensor's bytes.
    """
    ranges = live_ranges(calls).values()
    shared = [live for live in ranges if not live.tensor.persistent]
    sizes = [-(-size_of(live.tensor) // ALIGNMENT) * ALIGNMENT for live in shared]
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: list[tuple[Tensor, int]] = []
    total = 0
    for live, size in sorted(zip(shared, sizes, strict=True), key=lambda pair: -pair[1]):
        offset = 0
        for start, end, first, last in placed:
            if last < live.first or live.last < first:
                continue
            if offset + size <= start:
                break
            offset = max(offset, end)
        bisect.insort(placed, (offset, offset + size, live.first, live.last))
        offsets.append((live.tensor, offset))
        total = max(total, offset + size)
    persistent = [live.tensor for live in ranges if live.tensor.persistent]
    return MemoryPlan(offsets, total, sum(sizes), persistent)


class Pool:
    """One piece of memory for several nets that never run at the same time."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.size = 0
        self._memory: Any = None
        self._plans: list[MemoryPlan] = []

    def remove(self, plan: MemoryPlan) -> None:
        """Forget a plan whose tensors are not used any more."""
        self._plans.remove(plan)

    def add(self, plan: MemoryPlan) -> None:
        """Place a plan's tensors; when the pool must grow, all plans move to the new memory."""
        if not any(plan is known for known in self._plans):  # else it was joined with another
            self._plans.append(plan)
        moved = [plan]
        # A plan of empty tensors needs memory, too.
        if self._memory is None or plan.size > self.size:
            if self._memory is not None:
                self.backend.synchronize()  # what runs may still use the memory that is given up
                self.backend.moves += 1
            self.size = plan.size
            self._memory = self.backend.allocate(self.size)
            moved = self._plans
        for moving in moved:
            for tensor, offset in moving.offsets:
                self.backend.place(tensor, self._memory, offset)
