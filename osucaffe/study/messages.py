"""Messages: all those of a collective operation of all ranks, in waves that depend only on
earlier ones.

A plan of messages is made of the steps of each rank: the schedules of `comm/algorithms`, by the
levels of `comm/hierarchical.py` where ranks share hosts. A step begins when the one before it is
complete, as in `comm/mpi.py`; messages between two ranks arrive in the order in which they were
sent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..comm.algorithms import Operation, part, schedule
from ..comm.gpu.half_precision import REDUCTIONS
from ..comm.hierarchical import Levels
from ..comm.tuning.table import INSTEAD, Selection
from ..parallel.buckets import ITEM
from .cluster import Cluster

ALIKE_FROM = 32
"""Ranks above which arrays of similar sizes share a plan."""


Pieces = tuple[tuple[int, int], ...]
"""Of a bucket, (server from 0, elements) pairs."""
Messages = list[tuple[int, int]]
RankStep = tuple[Messages, Messages, int]
"""What a rank sends, what it receives (peer, bytes), and the bytes that it then adds."""


@lru_cache(maxsize=1024)
def _relative(
    operation: Operation,
    name: str,
    rank: int,
    size: int,
    count: int,
    root: int,
    chunk: int,
    item: int,
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


Waves = list[Wave]


class Planner:
    """Makes and caches the plans of operations among the first `size` ranks of a cluster.

    hierarchical: whether hosts and their leaders are levels, where there are several of each.
    narrow: whether gradients travel in 16 bits.
    """

    rank = 0
    """Whose plan is made with it (a `Group`)."""

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
        self._plans: dict[tuple[Operation, int, int], Waves] = {}
        self._levels_of: dict[int, Levels] = {}

    def plan(self, operation: Operation, count: int, root: int = 0) -> tuple[Waves, float]:
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

    def part(self, count: int, rank: int | None = None) -> tuple[int, int]:
        """As the communicator of all ranks divides an array (None: rank 0's part)."""
        if not self._levels:
            return part(count, self.size, rank or 0)
        return self._find_levels(0).part(count, rank or 0)

    def narrows(self, operation: Operation) -> bool:
        """Whether what it sums travels in 16 bits."""
        return self._narrow and operation in REDUCTIONS

    def _steps(self, operation: Operation, count: int, root: int, rank: int) -> list[RankStep]:
        """What a rank does."""
        item = 2 if self.narrows(operation) else ITEM
        if not self._levels:
            return self._steps_among([*range(self.size)], rank, operation, count, root, item)
        levels, steps = self._find_levels(rank), list[RankStep]()
        for each in levels.parts(operation, count, count * item, root):
            if each.transfers is not None:
                sends, receives = (
                    [(one.peer, (one.stop - one.start) * item) for one in side]
                    for side in each.transfers
                )
                steps.append((sends, receives, 0))
                continue
            ranks, length = levels.ranks(each.level), each.stop - each.start
            steps += self._steps_among(ranks, rank, each.operation, length, each.root, item)
        return steps

    def _steps_among(
        self, ranks: list[int], rank: int, operation: Operation, count: int, root: int, item: int
    ) -> list[RankStep]:
        """The schedule that `Mpi` of these ranks would carry out. item: bytes of an element."""
        if len(ranks) == 1:
            return []
        level = "node" if len({self._hosts[rank] for rank in ranks}) == 1 else "network"
        name, chunk = self._selection.choose(operation, count * item, len(ranks), level)
        name = INSTEAD[operation] if name == "native" else name
        place, size = ranks.index(rank), len(ranks)
        return [
            (
                [(ranks[peer], nbytes) for peer, nbytes in sends],
                [(ranks[peer], nbytes) for peer, nbytes in receives],
                added,
            )
            for sends, receives, added in _relative(
                operation, name, place, size, count, root, chunk // item, item
            )
        ]

    def _find_levels(self, rank: int) -> Levels:
        """As `comm/create.py` would make them for this rank."""
        if rank not in self._levels_of:
            hosts = self._hosts
            rails = len({hosts.count(host) for host in {*hosts}}) == 1
            self._levels_of[rank] = Levels(rank, hosts, rails=rails)
        return self._levels_of[rank]


@lru_cache(maxsize=4096)
def with_servers(
    senders: range, workers: int, servers: int, pieces: Pieces, slices: int = 1
) -> tuple[Waves, Waves]:
    """What these of the workers send to the servers of some pieces, and what comes back; each
    message cut into that many slices. Servers are the ranks after the workers."""
    parts = [(workers + server, elements * ITEM // slices) for server, elements in pieces]
    ranks: list[list[RankStep]] = [[] for _ in range(workers + servers)]
    for worker in senders:
        ranks[worker] = [(parts * slices, [], 0)]
    for server, nbytes in parts:
        ranks[server] = [([], [(worker, nbytes) for worker in senders] * slices, 0)]
    back = [[(receives, sends, 0) for sends, receives, _ in steps] for steps in ranks]
    return waves(ranks), waves(back)


def waves(ranks: Sequence[Sequence[RankStep]]) -> Waves:
    """The plan of what all ranks do. ValueError where they would wait for ever."""
    at, left = [0] * len(ranks), [0] * len(ranks)
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    pending: dict[tuple[int, int], int] = defaultdict(int)
    begun = [rank for rank, steps in enumerate(ranks) if steps]
    plan: Waves = []
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
