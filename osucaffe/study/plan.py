"""Owns plans: all messages of a collective operation of all ranks, in waves that depend only on
earlier ones.

A plan is made of the steps of each rank: the schedules of `comm/algorithms`, composed by
`comm/hierarchical.py` where ranks share hosts. A step begins when the one before it is complete, as
in `comm/mpi.py`; messages between two ranks arrive in the order in which they were sent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..comm.algorithms import Step, schedule
from ..comm.communicator import Communicator
from ..comm.gpu.half_precision import REDUCTIONS
from ..comm.hierarchical import Hierarchical
from ..comm.tuning.table import INSTEAD, Selection
from ..parallel.buckets import ITEM
from .cluster import Cluster

ALIKE_FROM = 32
"""Ranks above which arrays of similar sizes share a plan."""


class Extent:
    """A stand-in for a flat array that has only a length, of float32 if nothing is said."""

    def __init__(self, size: int, itemsize: int = ITEM) -> None:
        self.size, self.itemsize = size, itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __getitem__(self, part: slice) -> Extent:
        start, stop, _ = part.indices(self.size)
        return Extent(stop - start, self.itemsize)


Messages = list[tuple[int, int]]
RankStep = tuple[Messages, Messages, int]
"""What a rank sends, what it receives (peer, bytes), and the bytes that it then adds."""


@lru_cache(maxsize=1024)
def _relative(
    operation: str, name: str, rank: int, size: int, count: int, root: int, chunk: int, item: int
) -> list[RankStep]:
    """A schedule of the algorithms, in bytes. item: those of an element."""
    # Bypass their cache: it would hold all schedules of a plan.
    steps = schedule.__wrapped__(operation, name, rank, size, count, root, chunk)
    return [
        (
            [(peer, (stop - start) * item) for peer, start, stop, _ in sends],
            [(peer, (stop - start) * item) for peer, start, stop, _ in receives],
            sum((stop - start) * item for _, start, stop, add in receives if add),
        )
        for sends, receives in steps
    ]


class Leaf(Communicator):
    """One rank's communicator of the given ranks of the job: notes what each step is to do."""

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        level: str,
        selection: Selection,
        steps: list[RankStep],
    ) -> None:
        super().__init__(ranks.index(rank), len(ranks), level=level)
        self._ranks, self._selection, self._steps = ranks, selection, steps

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        """The schedule that `Mpi` would carry out."""
        name, chunk = self._selection.choose(operation, array.nbytes, self.size, self.level)
        name = INSTEAD[operation] if name == "native" else name
        ranks, item = self._ranks, array.itemsize
        for sends, receives, added in _relative(
            operation, name, self.rank, self.size, array.size, root, chunk // item, item
        ):
            self._steps.append((
                [(ranks[peer], nbytes) for peer, nbytes in sends],
                [(ranks[peer], nbytes) for peer, nbytes in receives],
                added,
            ))  # fmt: skip

    def transfer(self, array: Any, step: Step) -> None:
        """Its messages."""
        sends, receives = (
            [(self._ranks[each.peer], (each.stop - each.start) * array.itemsize) for each in side]
            for side in step
        )
        self._steps.append((sends, receives, 0))


@dataclass(frozen=True)
class Wave:
    """Messages that may all be in flight once those of the earlier waves have arrived.

    finished: the ranks whose steps end with them; added: the bytes that each then adds.
    """

    source: np.ndarray
    target: np.ndarray
    nbytes: np.ndarray
    finished: np.ndarray
    added: np.ndarray


Plan = list[Wave]


class Planner:
    """Makes and caches the plans of operations among the first `size` ranks of a cluster.

    hierarchical: whether hosts and their leaders are levels, where there are several of each.
    narrow: whether gradients travel in 16 bits.
    """

    def __init__(
        self,
        cluster: Cluster,
        size: int,
        selection: Selection,
        *,
        hierarchical: bool = True,
        narrow: bool = False,
    ) -> None:
        self.size, self._selection, self._narrow = size, selection, narrow
        self._hosts = [cluster.host(rank) for rank in range(size)]
        self._levels = hierarchical and 1 < len(set(self._hosts)) < size
        self._plans: dict[tuple[str, int, int], Plan] = {}
        self._communicators: dict[int, tuple[Communicator, list[RankStep]]] = {}

    def plan(self, operation: str, count: int, root: int = 0) -> tuple[Plan, float]:
        """The plan of an operation on `count` elements, and a factor for its messages' bytes.

        Among many ranks, arrays of similar sizes (within 5 %) share a plan, and the factor corrects
        it.
        """
        made = count
        if self.size > ALIKE_FROM and count >= ALIKE_FROM * self.size:
            made = round(2 ** (round(8 * math.log2(count)) / 8))
        key = operation, made, root
        if key not in self._plans:
            self._plans[key] = waves([self._steps(*key, rank) for rank in range(self.size)])
        return self._plans[key], count / made

    def part(self, count: int, rank: int) -> tuple[int, int]:
        """As the communicator of all ranks divides an array."""
        return self._communicator(rank)[0].part(count)

    def narrows(self, operation: str) -> bool:
        """Whether what it sums travels in 16 bits."""
        return self._narrow and operation in REDUCTIONS

    def _steps(self, operation: str, count: int, root: int, rank: int) -> list[RankStep]:
        comm, steps = self._communicator(rank)
        steps.clear()
        comm.run(operation, Extent(count, 2 if self.narrows(operation) else ITEM), root)
        return list(steps)

    def _communicator(self, rank: int) -> tuple[Communicator, list[RankStep]]:
        """That of a rank, and where it notes steps."""
        if rank not in self._communicators:
            steps: list[RankStep] = []
            self._communicators[rank] = self._make(rank, steps), steps
        return self._communicators[rank]

    def _make(self, rank: int, steps: list[RankStep]) -> Communicator:
        """What `comm/create.py` would make for this rank."""

        def leaf(ranks: Sequence[int]) -> Leaf:
            one_host = len({self._hosts[rank] for rank in ranks}) == 1
            level = "node" if one_host else "network"
            return Leaf(ranks, rank, level, self._selection, steps)

        hosts, every = self._hosts, range(self.size)
        world = leaf(every)
        if not self._levels:
            return world
        inside = [other for other in every if hosts[other] == hosts[rank]]
        leaders = [hosts.index(host) for host in range(hosts[-1] + 1)]
        local_rank = inside.index(rank)
        rails = None
        if self.size % len(inside) == 0 and self.size == len(inside) * len(leaders):
            rails = leaf([leader + local_rank for leader in leaders])
        cross = leaf(leaders) if local_rank == 0 else None
        return Hierarchical(world, leaf(inside), cross, hosts, rails=rails)


def waves(ranks: Sequence[Sequence[RankStep]]) -> Plan:
    """The plan of what all ranks do. ValueError where they would wait for ever."""
    at, left = [0] * len(ranks), [0] * len(ranks)
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    pending: dict[tuple[int, int], int] = defaultdict(int)
    begun = [rank for rank, steps in enumerate(ranks) if steps]
    plan: Plan = []
    while begun:
        messages: list[tuple[int, int, int]] = []
        for rank in begun:
            sends, receives, _ = ranks[rank][at[rank]]
            left[rank] = len(sends) + len(receives)
            for peer, nbytes in sends:
                if pending[rank, peer]:
                    pending[rank, peer] -= 1
                    messages.append((rank, peer, nbytes))
                else:
                    sent[rank, peer].append(nbytes)
            for peer, _ in receives:
                if sent[peer, rank]:
                    messages.append((peer, rank, sent[peer, rank].pop(0)))
                else:
                    pending[peer, rank] += 1
        finished = []
        for source, target, _ in messages:
            for rank in (source, target):
                left[rank] -= 1
                if not left[rank]:
                    finished.append(rank)
        added = [ranks[rank][at[rank]][2] for rank in finished]
        plan.append(_wave(messages, finished, added))
        for rank in finished:
            at[rank] += 1
        begun = [rank for rank in finished if at[rank] < len(ranks[rank])]
    if stuck := [rank for rank, steps in enumerate(ranks) if at[rank] < len(steps)]:
        raise ValueError(f"ranks {stuck[:8]} wait for messages that nobody sends")
    return plan


def _wave(messages: Sequence[Any], finished: list[int], added: list[int]) -> Wave:
    source, target, nbytes = zip(*messages, strict=True) if messages else ((), (), ())
    indices: Callable[[Any], np.ndarray] = lambda values: np.array(values, np.intp)  # noqa: E731
    return Wave(
        indices(source),
        indices(target),
        np.array(nbytes, float),
        indices(finished),
        np.array(added, float),
    )
