"""The collective algorithms by operation and name, and the schedule that one rank follows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from ...errors import UserError
from . import exchanges, trees
from .schedule import Schedule, Step, Transfer, added, mirror, part, rotate

__all__ = [
    "ALGORITHMS", "OPERATIONS", "RADIX", "Schedule", "Step", "Transfer",
    "added", "algorithms_for", "part", "schedule",
]  # fmt: skip

RADIX = 4
"""The k of "knomial"."""


class Problem(NamedTuple):
    """elements among size ranks, seen from one; chunk: elements that pipelines move."""

    rank: int
    size: int
    elements: int
    chunk: int


Builder = Callable[[Problem], Schedule]


def _whole(place: Callable[[int, int], trees.Place]) -> Builder:
    """A broadcast down a tree in one piece."""
    return lambda p: trees.broadcast(place(p.rank, p.size), p.elements, p.elements)


def _chunked(place: Callable[[int, int], trees.Place]) -> Builder:
    """A broadcast down a tree in chunks."""
    return lambda p: trees.broadcast(place(p.rank, p.size), p.elements, p.chunk)


_TREES: dict[str, Builder] = {
    "binomial": _whole(trees.knomial),
    "knomial": _whole(lambda rank, size: trees.knomial(rank, size, RADIX)),
    "chain": _chunked(trees.chain),
    "chain_binomial": _chunked(trees.chain_binomial),
}
_ALL_GATHER: dict[str, Builder] = {
    "ring": lambda p: exchanges.ring_all_gather(p.rank, p.size, p.elements),
    "recursive_doubling": lambda p: exchanges.doubling_all_gather(p.rank, p.size, p.elements),
}


def _mirrored(build: Builder) -> Builder:
    return lambda p: mirror(build(p))


def _there_and_back(build: Builder) -> Builder:
    """Reduce to where a broadcast (or all-gather) begins, then do that."""
    return lambda p: mirror(build(p)) + build(p)


ALGORITHMS: dict[str, dict[str, Builder]] = {
    "broadcast": _TREES
    | {"scatter_allgather": lambda p: exchanges.scatter_all_gather(p.rank, p.size, p.elements)},
    "reduce": {name: _mirrored(build) for name, build in _TREES.items()}
    | {"scatter_gather": lambda p: exchanges.scatter_gather(p.rank, p.size, p.elements)},
    "all_gather": _ALL_GATHER,
    "reduce_scatter": {
        "ring": _mirrored(_ALL_GATHER["ring"]),
        "recursive_halving": _mirrored(_ALL_GATHER["recursive_doubling"]),
    },
    "all_reduce": {
        "ring": _there_and_back(_ALL_GATHER["ring"]),
        "recursive_doubling": lambda p: exchanges.doubling_all_reduce(p.rank, p.size, p.elements),
        "halving_doubling": _there_and_back(_ALL_GATHER["recursive_doubling"]),
        **{name: _there_and_back(build) for name, build in _TREES.items()},
    },
}
"""Each operation's algorithms. For broadcast and reduce they are written for root 0."""

OPERATIONS = tuple(ALGORITHMS)


@lru_cache(maxsize=4096)
def schedule(
    operation: str, algorithm: str, rank: int, size: int, count: int, root: int = 0, chunk: int = 0
) -> Schedule:
    """What `rank` does in an operation on `count` elements; chunk in elements (0: all at once)."""
    if not count or size == 1:
        return ()
    build = ALGORITHMS[operation][algorithm]
    relative = (rank - root) % size
    return rotate(build(Problem(relative, size, count, chunk or count)), root, size)


def algorithms_for(name: str) -> dict[str, str]:
    """The operations that an algorithm's name stands for: {operation: algorithm}.

    UserError if no operation has an algorithm of that name.
    """
    found = {operation: name for operation, known in ALGORITHMS.items() if name in known}
    if not found:
        names = sorted({each for known in ALGORITHMS.values() for each in known})
        raise UserError(
            f"algorithm {name!r} is not known: choose auto or one of {', '.join(names)}"
        )
    return found
