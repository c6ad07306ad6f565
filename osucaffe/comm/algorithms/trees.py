"""Owns trees of ranks, and the broadcast that sends a buffer down a tree in chunks.

With n ranks, M bytes, chunks of C bytes, start-up time t and bandwidth B, a broadcast takes
k-nomial: ceil(log_k n) (k - 1) (t + M/B); chain in chunks: (M/C + n - 2) (t + C/B)
(Awan et al., arXiv 1707.09414).
"""

from __future__ import annotations

from typing import NamedTuple

from .schedule import Schedule, Step, Transfer, make


class Place(NamedTuple):
    """A rank's place in a tree that hangs from rank 0."""

    parent: int | None
    children: tuple[int, ...]


def chain(rank: int, size: int) -> Place:
    """0 - 1 - 2 - ... : each rank feeds the next one."""
    return Place(rank - 1 if rank else None, (rank + 1,) if rank + 1 < size else ())


def knomial(rank: int, size: int, radix: int = 2) -> Place:
    """The k-nomial tree (binomial: radix 2): a rank's parent lacks its lowest non-zero digit.

    Digits are those of the rank to base `radix`. Children with the largest subtrees come first.
    """
    parent, span = None, 1
    while span < size:
        if digit := rank // span % radix:
            parent = rank - digit * span
            break
        span *= radix
    children = []
    while span > 1:
        span //= radix
        children += [rank + digit * span for digit in range(1, radix) if rank + digit * span < size]
    return Place(parent, tuple(children))


def chain_binomial(rank: int, size: int, group: int = 8) -> Place:
    """Chains inside groups of neighbours, a binomial tree among the groups' first ranks.

    Run backwards this is the reduction tree of S-Caffe (Awan et al., PPoPP 2017).
    """
    first = rank // group * group
    inner = chain(rank - first, min(group, size - first))
    children = tuple(first + child for child in inner.children)
    if rank != first:
        assert inner.parent is not None
        return Place(first + inner.parent, children)
    outer = knomial(rank // group, -(-size // group))
    parent = None if outer.parent is None else outer.parent * group
    return Place(parent, tuple(child * group for child in outer.children) + children)


def broadcast(place: Place, count: int, chunk: int) -> Schedule:
    """Pass `count` elements from the root down a tree, `chunk` at a time: while a chunk comes in,
    the one before it goes out. A buffer of a single chunk goes to one child after the other.
    """
    pieces = [(start, min(start + chunk, count)) for start in range(0, count, chunk)]
    parent, children = place
    coming = [() if parent is None else (Transfer(parent, *piece),) for piece in pieces]
    if len(pieces) == 1:
        going = [Step((Transfer(child, *pieces[0]),)) for child in children]
        return make([Step((), coming[0]), *going])
    steps = []
    late = 0 if parent is None else 1  # a chunk goes out one step after it came in
    for index in range(len(pieces) + late):
        receives = coming[index] if index < len(pieces) else ()
        gone = index - late
        sends = [Transfer(child, *pieces[gone]) for child in children] if gone >= 0 else []
        steps.append(Step(tuple(sends), receives))
    return make(steps)
