"""The composition of communicators: ranks that are near one another, and their leaders.

`local` joins the ranks of one group, `cross` the first ranks of all groups. As `cross` may itself
be hierarchical, ranks on one GPU, GPUs of a node, and nodes are levels of one thing. Groups may
have any sizes. Where all have the same size, large gradients travel between the groups on as many
rails as a group has ranks: each rank exchanges its part (`rails`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, NamedTuple

from . import algorithms
from .algorithms import Operation, Step, Transfer, all_to_all
from .communicator import Communicator

RAILS_FROM = 64 * 1024
"""Bytes from which an all-reduce is cut into parts for the rails."""


class Level(Enum):
    """Ranks that communicate: all, those of a group, the groups' leaders, those of a rail."""

    WORLD = "world"
    LOCAL = "local"
    CROSS = "cross"
    RAILS = "rails"


class Part(NamedTuple):
    """What a level does of an operation: one on elements start .. stop - 1, or only transfers."""

    level: Level
    operation: Operation
    start: int
    stop: int
    root: int = 0
    transfers: Step | None = None


class Levels:
    """Which levels take part in the operations of a rank, one after the other.

    groups: for each rank the number of its group, counted in the order of their first ranks. rails:
    whether there are any, which join the ranks of one number in all groups, all of one size.
    """

    def __init__(self, rank: int, groups: Sequence[int], *, rails: bool) -> None:
        self.rank, self.groups, self._has_rails = rank, groups, rails
        self._group = groups[rank]
        met: Counter[int] = Counter()
        self._local_rank: list[int] = []
        for group in groups:
            self._local_rank.append(met[group])
            met[group] += 1
        self._leads = self._local_rank[rank] == 0

    def ranks(self, level: Level) -> list[int]:
        """The ranks of a level that this rank is part of."""
        every = range(len(self.groups))
        if level is Level.LOCAL:
            return [rank for rank in every if self.groups[rank] == self._group]
        if level is Level.CROSS:
            return [rank for rank in every if not self._local_rank[rank]]
        if level is Level.RAILS:
            here = self._local_rank[self.rank]
            return [rank for rank in every if self._local_rank[rank] == here]
        return [*every]

    def part(self, count: int, rank: int) -> tuple[int, int]:
        """The range of an array that is a rank's. With rails: the group's part within the part of
        the local rank."""
        if not self._has_rails:
            return algorithms.part(count, len(self.groups), rank)
        local, group = self._local_rank[rank], self.groups[rank]
        start, stop = algorithms.part(count, self._size, local)
        first, last = algorithms.part(stop - start, self._local_rank.count(local), group)
        return start + first, start + last

    @property
    def _size(self) -> int:
        """Of this rank's group."""
        return self.groups.count(self._group)

    def parts(self, operation: Operation, count: int, nbytes: int, root: int) -> Iterator[Part]:
        """What this rank does, level by level, for an operation on an array."""
        local, cross, rails = Level.LOCAL, Level.CROSS, Level.RAILS
        match operation:
            case Operation.BROADCAST:  # in the root's group; among the leaders; in other groups
                home = self.groups[root]
                if self._group == home:
                    yield Part(local, operation, 0, count, self._local_rank[root])
                if self._leads:
                    yield Part(cross, operation, 0, count, home)
                if self._group != home:
                    yield Part(local, operation, 0, count)
            case Operation.REDUCE:
                yield from self._reduce(count, root)
            case Operation.ALL_REDUCE if self._has_rails and nbytes >= RAILS_FROM:
                start, stop = algorithms.part(count, self._size, self._local_rank[self.rank])
                yield Part(local, Operation.REDUCE_SCATTER, 0, count)
                yield Part(rails, operation, start, stop)
                yield Part(local, Operation.ALL_GATHER, 0, count)
            case Operation.ALL_REDUCE:
                yield Part(local, Operation.REDUCE, 0, count)
                if self._leads:
                    yield Part(cross, operation, 0, count)
                yield Part(local, Operation.BROADCAST, 0, count)
            case Operation.ALL_TO_ALL:  # straight between any two ranks
                step = all_to_all(self.rank, len(self.groups), count, self.part)
                yield Part(Level.WORLD, operation, 0, count, transfers=step)
            case _ if not self._has_rails:
                yield Part(Level.WORLD, operation, 0, count)
            case _:
                start, stop = algorithms.part(count, self._size, self._local_rank[self.rank])
                steps = Part(local, operation, 0, count), Part(rails, operation, start, stop)
                yield from steps if operation == Operation.REDUCE_SCATTER else reversed(steps)

    def _reduce(self, count: int, root: int) -> Iterator[Part]:
        """In each group to its leader; among the leaders; from the root's leader to the root."""
        home, operation = self.groups[root], Operation.REDUCE
        yield Part(Level.LOCAL, operation, 0, count)
        if self._leads:
            yield Part(Level.CROSS, operation, 0, count, home)
        if self._group == home and self._local_rank[root]:
            step = None
            if self.rank == root:
                step = Step(receives=(Transfer(self.groups.index(home), 0, count),))
            elif self._leads:
                step = Step((Transfer(root, 0, count),))
            if step is not None:
                yield Part(Level.WORLD, operation, 0, count, transfers=step)


class Hierarchical(Communicator):
    """Composes communicators of all ranks (`world`), of this group, and of the groups' leaders.

    groups: see `Levels`. cross: None on ranks that do not lead their group. rails: the ranks with
    the same local rank in all groups, if these have one size; without, reduce_scatter and
    all_gather go over `world`, as do messages between two ranks.
    """

    def __init__(
        self,
        world: Communicator,
        local: Communicator,
        cross: Communicator | None,
        groups: Sequence[int],
        *,
        rails: Communicator | None = None,
        background: bool = False,
    ) -> None:
        super().__init__(world.rank, world.size, level=world.level, background=background)
        self._levels = Levels(self.rank, groups, rails=rails is not None)
        made = {Level.RAILS: rails, Level.CROSS: cross, Level.LOCAL: local, Level.WORLD: world}
        self._comms = {level: comm for level, comm in made.items() if comm is not None}

    def run(self, operation: Operation, array: Any, root: int = 0) -> None:
        """Do one collective operation, level by level: in the foreground, on whatever thread this
        is."""
        for part in self._levels.parts(operation, array.size, array.nbytes, root):
            comm = self._comms[part.level]
            if part.transfers is not None:
                comm.transfer(array, part.transfers)
            elif comm.size > 1 and part.start < part.stop:
                comm.carry(part.operation, array[part.start : part.stop], part.root)

    def part(self, count: int, rank: int | None = None) -> tuple[int, int]:
        """As the levels divide it."""
        return self._levels.part(count, self.rank if rank is None else rank)

    def close(self) -> None:
        """Close what it composes."""
        super().close()
        for comm in self.inside():
            comm.close()

    def inside(self) -> list[Communicator]:
        """Those of the levels."""
        return list(self._comms.values())
