"""Owns the composition of communicators: ranks that are near one another, and their leaders.

`local` joins the ranks of one group, `cross` the first ranks of all groups. As `cross` may itself
be hierarchical, ranks on one GPU, GPUs of a node, and nodes are levels of one thing. Groups may
have any sizes. Where all have the same size, large gradients take as many ways between the
groups as a group has ranks: each rank speaks for its part (`rails`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .algorithms import part
from .communicator import Communicator

RAILS_FROM = 64 * 1024
"""Bytes from which an all-reduce is cut into parts for the rails."""


class Hierarchical(Communicator):
    """Composes communicators of all ranks (`whole`), of this group, and of the groups' leaders.

    groups: for each rank the number of its group, counted in the order of their first ranks.
    cross: None on ranks that do not lead their group. rails: the ranks with this one's place in
    their groups, where all groups have one size. Operations that gain nothing from groups
    (reduce_scatter, all_gather, send, recv) go over `whole`.
    """

    def __init__(
        self,
        whole: Communicator,
        local: Communicator,
        cross: Communicator | None,
        groups: Sequence[int],
        *,
        rails: Communicator | None = None,
        background: bool = False,
    ) -> None:
        super().__init__(whole.rank, whole.size, level=whole.level, background=background)
        self._whole, self._local, self._cross, self._rails = whole, local, cross, rails
        self._group = groups[self.rank]
        self._groups = groups
        self._local_rank = [
            sum(other == group for other in groups[:rank]) for rank, group in enumerate(groups)
        ]

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        """Do one collective operation, level by level."""
        compose = getattr(self, f"_{operation}", None)
        if compose is None:
            self._whole.run(operation, array, root)
        else:
            compose(array, root)

    def transfer(self, array: Any, *, to: int | None = None, source: int | None = None) -> None:
        """Send or receive over the communicator of all ranks."""
        self._whole.transfer(array, to=to, source=source)

    def close(self) -> None:
        """Close what it composes."""
        super().close()
        for each in (self._rails, self._cross, self._local, self._whole):
            if each is not None:
                each.close()

    # Leaves are asked to `run`: in the foreground, whatever thread this is.

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
                self._whole.transfer(array, source=self._groups.index(home))
            elif self._cross is not None:
                self._whole.transfer(array, to=root)

    def _all_reduce(self, array: Any, root: int) -> None:
        """By the leaders; or, over the rails: reduce-scatter, all-reduce of each part, gather."""
        if self._rails is not None and array.nbytes >= RAILS_FROM:
            _run(self._local, "reduce_scatter", array)
            start, stop = part(array.size, self._local.size, self._local.rank)
            _run(self._rails, "all_reduce", array[start:stop])
            _run(self._local, "all_gather", array)
            return
        _run(self._local, "reduce", array, 0)
        if self._cross is not None:
            _run(self._cross, "all_reduce", array)
        _run(self._local, "broadcast", array, 0)


def _run(comm: Communicator, operation: str, array: Any, root: int = 0) -> None:
    if comm.size > 1 and array.size:
        comm.run(operation, array, root)
