"""Owns the memory plan: tensors whose lives do not overlap share memory.

A tensor lives from the first call that touches it to the last. Offsets are chosen greedily, large
tensors first, each at the lowest place that is free during its life (Pisarchyk & Lee 2020,
arXiv 2001.03288, section 5).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...backends.backend import Backend
from ...backends.tensor import Call, Tensor

ALIGNMENT = 256
"""Tensors begin at multiples of this many bytes, as cuBLAS wants it of its scratch memory."""


@dataclass
class MemoryPlan:
    """Where each shared tensor begins, and the bytes needed with and without sharing."""

    offsets: list[tuple[Tensor, int]]
    size: int
    unshared: int
    persistent: list[Tensor]

    def __str__(self) -> str:
        return f"{self.size / 1e6:.1f} MB ({self.unshared / 1e6:.1f} MB if none were shared)"


@dataclass
class Life:
    """A tensor with the first and the last time at which it is needed."""

    tensor: Tensor
    first: int
    last: int


def lives(timelines: Iterable[Iterable[Call]]) -> dict[int, Life]:
    """The lives, by id, of all tensors that the calls touch and that have no memory yet.

    timelines: lists of calls that count time alike (call i of each runs "at time i").
    """
    by_id: dict[int, Life] = {}
    fed: set[int] = set()
    for calls in timelines:
        for time, call in enumerate(calls):
            written = [tensor.owner for tensor in call.written_tensors()]
            if call.settings.get("feed"):
                fed.update(id(tensor) for tensor in written)
            end = time + call.overlap
            read = [tensor.owner for tensor in call.read_tensors()]
            for tensor in (*written, *read, *call.scratch):
                if tensor.array is None and id(tensor) not in fed:
                    life = by_id.setdefault(id(tensor), Life(tensor, time, end))
                    life.first, life.last = min(life.first, time), max(life.last, end)
    return by_id


def plan_memory(
    timelines: Iterable[Iterable[Call]], size_of: Callable[[Tensor], int], *, share: bool
) -> MemoryPlan:
    """Plan the memory of every tensor that the calls touch and that has none yet.

    timelines: as for `lives`. size_of gives a tensor's bytes. share: False gives each tensor
    memory of its own.
    """
    every = list(lives(timelines).values())
    shared = [life for life in every if not life.tensor.persistent]
    sizes = [-(-size_of(life.tensor) // ALIGNMENT) * ALIGNMENT for life in shared]
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    offsets: list[tuple[Tensor, int]] = []
    total = 0
    for life, size in sorted(zip(shared, sizes, strict=True), key=lambda each: -each[1]):
        offset = total if not share else 0
        if share:
            for start, end, first, last in placed:
                if last < life.first or life.last < first:
                    continue
                if offset + size <= start:
                    break
                offset = max(offset, end)
        bisect.insort(placed, (offset, offset + size, life.first, life.last))
        offsets.append((life.tensor, offset))
        total = max(total, offset + size)
    persistent = [life.tensor for life in every if life.tensor.persistent]
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
        self._plans.append(plan)
        moved = [plan]
        if (
            self._memory is None or plan.size > self.size
        ):  # a plan of empty tensors needs a place, too
            self.size = plan.size
            self._memory = self.backend.allocate(self.size)
            moved = self._plans
        for each in moved:
            for tensor, offset in each.offsets:
                self.backend.place(tensor, self._memory, offset)
