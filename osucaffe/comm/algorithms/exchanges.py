"""Owns the algorithms in which all ranks send at once: rings, doubling, scatter and all-gather.

Buffers are cut into one part for each rank (`schedule.part`), equal or not, even empty.
"""

from __future__ import annotations

from .schedule import Schedule, Step, Transfer, make, mirror, part
from .trees import knomial


def ring_all_gather(rank: int, size: int, count: int) -> Schedule:
    """The parts wander around the ring: size - 1 steps, count / size elements each."""
    steps = []
    for step in range(size - 1):
        going, coming = (rank - step) % size, (rank - step - 1) % size
        steps.append(
            Step(
                (Transfer((rank + 1) % size, *part(count, size, going)),),
                (Transfer((rank - 1) % size, *part(count, size, coming)),),
            )
        )
    return make(steps)


class Folding:
    """Any number of ranks made a power of two: ranks 2i and 2i + 1 pair up, as many as needed.

    Of a pair the even rank takes part for both (Rabenseifner & Traeff, EuroPVM/MPI 2004).
    main: how many take part. speaker: this rank's number among them; None: it does not.
    partner: the other rank of its pair, if it is in one.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.main = 1 << (size.bit_length() - 1)
        self._pairs = size - self.main
        paired = rank < 2 * self._pairs
        self.partner = rank ^ 1 if paired else None
        if paired:
            self.speaker = None if rank % 2 else rank // 2
        else:
            self.speaker = rank - self._pairs

    def rank_of(self, speaker: int) -> int:
        """The rank that has this number among those that take part: its first part's number."""
        return speaker + min(speaker, self._pairs)


def doubling_all_gather(rank: int, size: int, count: int) -> Schedule:
    """Recursive doubling: in each of log2(size) steps the ranks swap all that they have."""
    fold = Folding(rank, size)

    def block(first: int, length: int) -> tuple[int, int]:
        start, stop = fold.rank_of(first), fold.rank_of(first + length)
        return part(count, size, start)[0], part(count, size, stop)[0]

    steps = []
    partner = fold.partner
    if fold.speaker is None:
        assert partner is not None
        start, stop = part(count, size, rank)
        steps.append(Step((Transfer(partner, start, stop),)))
        rest = Transfer(partner, 0, start), Transfer(partner, stop, count)
        return make([*steps, Step((), rest)])
    if partner is not None:
        steps.append(Step((), (Transfer(partner, *part(count, size, partner)),)))
    distance = 1
    while distance < fold.main:
        base = fold.speaker // distance * distance
        peer = fold.rank_of(fold.speaker ^ distance)
        going, coming = block(base, distance), block(base ^ distance, distance)
        steps.append(Step((Transfer(peer, *going),), (Transfer(peer, *coming),)))
        distance *= 2
    if partner is not None:
        start, stop = part(count, size, partner)
        steps.append(Step((Transfer(partner, 0, start), Transfer(partner, stop, count))))
    return make(steps)


def doubling_all_reduce(rank: int, size: int, count: int) -> Schedule:
    """Recursive doubling of whole buffers: the fewest steps there are, for small messages."""
    fold = Folding(rank, size)
    partner = fold.partner
    if fold.speaker is None:
        assert partner is not None
        whole = Transfer(partner, 0, count)
        return make([Step((whole,)), Step((), (whole,))])
    steps = []
    if partner is not None:
        steps.append(Step((), (Transfer(partner, 0, count, add=True),)))
    distance = 1
    while distance < fold.main:
        peer = fold.rank_of(fold.speaker ^ distance)
        steps.append(Step((Transfer(peer, 0, count),), (Transfer(peer, 0, count, add=True),)))
        distance *= 2
    if partner is not None:
        steps.append(Step((Transfer(partner, 0, count),)))
    return make(steps)


def scatter(rank: int, size: int, count: int) -> Schedule:
    """From rank 0 each rank gets its part, and those of its subtree, down a binomial tree."""
    parent, children = knomial(rank, size)

    def subtree(root: int) -> tuple[int, int]:
        last = min(root + (root & -root), size)  # the ranks below it follow it
        return part(count, size, root)[0], part(count, size, last)[0]

    coming = [] if parent is None else [Step((), (Transfer(parent, *subtree(rank)),))]
    return make([*coming, *(Step((Transfer(child, *subtree(child)),)) for child in children)])


def scatter_all_gather(rank: int, size: int, count: int) -> Schedule:
    """A broadcast from rank 0 that moves each element about twice, whatever the size
    (van de Geijn): scatter, then all-gather around the ring.
    """
    return scatter(rank, size, count) + ring_all_gather(rank, size, count)


def scatter_gather(rank: int, size: int, count: int) -> Schedule:
    """The reduction to rank 0 that moves each element about twice: reduce-scatter around the
    ring, then gather up a binomial tree.
    """
    return mirror(ring_all_gather(rank, size, count)) + mirror(scatter(rank, size, count), False)
