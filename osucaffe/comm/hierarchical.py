"""Owns the composition of communicators: ranks that are near one another, and their leaders.

`local` joins the ranks of one group, `cross` the first ranks of all groups. As `cross` may itself
be hierarchical, ranks on one GPU, GPUs of a node, and nodes are levels of one thing. Groups may
have any sizes. Where all have the same size, large gradients travel between the groups on as many
rails as a group has ranks: each rank exchanges its part (`rails`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .algorithms import Step, Transfer, all_to_all
from .communicator import Communicator

RAILS_FROM = 64 * 1024
"""Bytes from which an all-reduce is cut into parts for the rails."""


class Hierarchical(Communicator):
    """Composes communicators of all ranks (`world`), of this group, and of the groups' leaders.

    groups: for each rank the number of its group, counted in the order of their first ranks.
    cross: None on ranks that do not lead their group. rails: the ranks with the same local
    rank in all groups, if these have one size; without, reduce_scatter and all_gather go over
    `world`, as do messages between two ranks.
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
        self._world, self._local, self._cross, self._rails = world, local, cross, rails
        self._group = groups[self.rank]
        self._groups = groups
        met: Counter[int] = Counter()
        self._local_rank: list[int] = []
        for group in groups:
            self._local_rank.append(met[group])
            met[group] += 1

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        """Do one collective operation, level by level."""
        getattr(self, f"_{operation}")(array, root)

    def part(self, count: int, rank: int | None = None) -> tuple[int, int]:
        """With rails: the group's part within the part of the local rank."""
        rank = self.rank if rank is None else rank
        if self._rails is None:
            return super().part(count, rank)
        local_rank = self._local_rank[rank]
        along = [other for other, at in enumerate(self._local_rank) if at == local_rank]
        start, stop = self._local.part(count, local_rank)
        first, last = self._rails.part(stop - start, along.index(rank))
        return start + first, start + last

    def close(self) -> None:
        """Close what it composes."""
        super().close()
        for comm in self.inside():
            comm.close()

    def inside(self) -> list[Communicator]:
        """Those of the levels."""
        every = (self._rails, self._cross, self._local, self._world)
        return [comm for comm in every if comm is not None]

    # Leaves are called by `run`: in the foreground, on whatever thread this is.

    def _broadcast(self, array: Any, root: int) -> None:
        """In the root's group; among the leaders; in the other groups."""
        home = self._groups[root]
        if self._group == home:
            _run(self._local, "broadcast", array, self._local_rank[root])
        if self._cross is not None:
            _run(self._cross, "broadcast", array, home)
        if self._group != home:
            _run(self._local, "broadcast", array, 0)

    def _reduce(self, array: Any, root: int) -> None:
        """In each group to its leader; among the leaders; from the root's leader to the root."""
        home = self._groups[root]
        _run(self._local, "reduce", array, 0)
        if self._cross is not None:
            _run(self._cross, "reduce", array, home)
        if self._group == home and self._local_rank[root]:
            if self.rank == root:
                source = Transfer(self._groups.index(home), 0, array.size)
                self._world.transfer(array, Step(receives=(source,)))
            elif self._cross is not None:
                self._world.transfer(array, Step((Transfer(root, 0, array.size),)))

    def _all_reduce(self, array: Any, root: int) -> None:
        """By the leaders; or, over the rails: reduce-scatter, all-reduce of each part, gather."""
        if self._rails is not None and array.nbytes >= RAILS_FROM:
            _run(self._local, "reduce_scatter", array)
            start, stop = self._local.part(array.size)
            _run(self._rails, "all_reduce", array[start:stop])
            _run(self._local, "all_gather", array)
            return
        _run(self._local, "reduce", array, 0)
        if self._cross is not None:
            _run(self._cross, "all_reduce", array)
        _run(self._local, "broadcast", array, 0)

    def _reduce_scatter(self, array: Any, root: int) -> None:
        """In each group, then each part over its rail."""
        if self._rails is None:
            _run(self._world, "reduce_scatter", array)
            return
        _run(self._local, "reduce_scatter", array)
        start, stop = self._local.part(array.size)
        _run(self._rails, "reduce_scatter", array[start:stop])

    def _all_gather(self, array: Any, root: int) -> None:
        """Each part over its rail, then in each group."""
        if self._rails is None:
            _run(self._world, "all_gather", array)
            return
        start, stop = self._local.part(array.size)
        _run(self._rails, "all_gather", array[start:stop])
        _run(self._local, "all_gather", array)

    def _all_to_all(self, array: Any, root: int) -> None:
        """Straight between any two ranks."""
        self._world.transfer(array, all_to_all(self.rank, self.size, array.size, self.part))


def _run(comm: Communicator, operation: str, array: Any, root: int = 0) -> None:
    if comm.size > 1 and array.size:
        comm.run(operation, array, root)
