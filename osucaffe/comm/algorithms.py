"""The collective algorithms by operation and name: the schedule that one rank follows.

A schedule refers to ranges of one flat buffer and nothing else, so it is a pure function of
(rank, size, count). Anything that can send and receive can run it: MPI, NCCL, a simulation.

A broadcast that is run backwards, every message in the other direction and added where it
arrives, is a reduction (`mirror`): in the one each rank gets each element once and passes it on,
in the other it gathers what it will pass on once. So only the broadcasting half is written down.

Trees: with n ranks, M bytes, chunks of C bytes, start-up time t and bandwidth B, a broadcast takes
k-nomial: ceil(log_k n) (k - 1) (t + M/B); chain in chunks: (M/C + n - 2) (t + C/B)
(Awan et al., arXiv 1707.09414). In rings, doubling, scatter and all-gather all ranks send at once;
buffers are cut into one part for each rank (`part`), equal or not, even empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from .. import plugins
from ..errors import UserError


class Operation(StrEnum):
    """A collective operation; `comm/communicator.py` says what each does."""

    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"


class Transfer(NamedTuple):
    """Elements start .. stop - 1 of the buffer, to or from a peer.

    add: what arrives is added to the buffer instead of overwriting it.
    """

    peer: int
    start: int
    stop: int
    add: bool = False


class Step(NamedTuple):
    """Transfers that are under way together; the next step begins when all are complete.

    Additions come last. What one peer sends in a step is either all added or all overwritten.
    """

    sends: tuple[Transfer, ...] = ()
    receives: tuple[Transfer, ...] = ()


Schedule = tuple[Step, ...]


def part(count: int, size: int, index: int) -> tuple[int, int]:
    """The range of part `index` of `size` nearly equal parts of `count` elements."""
    return count * index // size, count * (index + 1) // size


def make(steps: Sequence[Step]) -> Schedule:
    """The schedule of these steps, without empty transfers and empty steps."""
    nonempty = []
    for step in steps:
        sends = tuple(send for send in step.sends if send.start < send.stop)
        receives = tuple(receive for receive in step.receives if receive.start < receive.stop)
        if sends or receives:
            nonempty.append(Step(sends, receives))
    return tuple(nonempty)


def mirror(schedule: Schedule, add: bool = True) -> Schedule:
    """The reduction that is this broadcast (or all-gather) run backwards.

    add: without, what arrives overwrites: a scatter becomes a gather.
    """
    return tuple(
        Step(
            tuple(receive._replace(add=False) for receive in reversed(step.receives)),
            tuple(send._replace(add=add) for send in reversed(step.sends)),
        )
        for step in reversed(schedule)
    )


def rotate(schedule: Schedule, root: int, size: int) -> Schedule:
    """A schedule for root 0 made one for `root`: the peers count from there."""
    if not root:
        return schedule

    def turn(transfers: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        return tuple(item._replace(peer=(item.peer + root) % size) for item in transfers)

    return tuple(Step(turn(step.sends), turn(step.receives)) for step in schedule)


def added(step: Step) -> int:
    """How many elements a step receives to add: they need scratch memory."""
    return sum(receive.stop - receive.start for receive in step.receives if receive.add)


class Node(NamedTuple):
    """A rank of a tree whose root is rank 0."""

    parent: int | None
    children: tuple[int, ...]


def chain(rank: int, size: int) -> Node:
    """0 - 1 - 2 - ... : each rank feeds the next one."""
    return Node(rank - 1 if rank else None, (rank + 1,) if rank + 1 < size else ())


def knomial(rank: int, size: int, radix: int = 2) -> Node:
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
    return Node(parent, tuple(children))


def chain_binomial(rank: int, size: int, group: int = 8) -> Node:
    """Chains inside groups of neighbours, a binomial tree among the groups' first ranks.

    Run backwards this is the reduction tree of S-Caffe (Awan et al., PPoPP 2017).
    """
    first = rank // group * group
    inner = chain(rank - first, min(group, size - first))
    children = tuple(first + child for child in inner.children)
    if rank != first:
        assert inner.parent is not None
        return Node(first + inner.parent, children)
    outer = knomial(rank // group, -(-size // group))
    parent = None if outer.parent is None else outer.parent * group
    return Node(parent, tuple(child * group for child in outer.children) + children)


def broadcast(node: Node, count: int, chunk: int) -> Schedule:
    """Pass `count` elements from the root down a tree, `chunk` at a time: while a chunk comes in,
    the one before it goes out. A buffer of a single chunk goes to one child after the other.
    """
    pieces = [(start, min(start + chunk, count)) for start in range(0, count, chunk)]
    parent, children = node
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


def ring_all_gather(rank: int, size: int, count: int) -> Schedule:
    """The parts are passed around the ring: size - 1 steps of count / size elements."""
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
    """Recursive doubling of the full buffer: the fewest possible steps, for small messages."""
    fold = Folding(rank, size)
    partner = fold.partner
    if fold.speaker is None:
        assert partner is not None
        everything = Transfer(partner, 0, count)
        return make([Step((everything,)), Step((), (everything,))])
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


RADIX = 4
"""The k of "knomial"."""


class Problem(NamedTuple):
    """elements among size ranks, seen from one; chunk: elements that pipelines move."""

    rank: int
    size: int
    elements: int
    chunk: int


Builder = Callable[[Problem], Schedule]


def _unchunked(tree: Callable[[int, int], Node]) -> Builder:
    """A broadcast down a tree in one piece."""
    return lambda p: broadcast(tree(p.rank, p.size), p.elements, p.elements)


def _chunked(tree: Callable[[int, int], Node]) -> Builder:
    """A broadcast down a tree in chunks."""
    return lambda p: broadcast(tree(p.rank, p.size), p.elements, p.chunk)


_TREES: dict[str, Builder] = {
    "binomial": _unchunked(knomial),
    "knomial": _unchunked(lambda rank, size: knomial(rank, size, RADIX)),
    "chain": _chunked(chain),
    "chain_binomial": _chunked(chain_binomial),
}
_ALL_GATHER: dict[str, Builder] = {
    "ring": lambda p: ring_all_gather(p.rank, p.size, p.elements),
    "recursive_doubling": lambda p: doubling_all_gather(p.rank, p.size, p.elements),
}


def _mirrored(build: Builder) -> Builder:
    return lambda p: mirror(build(p))


def _with_reduce(build: Builder) -> Builder:
    """The reduction to a broadcast's (or all-gather's) origin, then the broadcast."""
    return lambda p: mirror(build(p)) + build(p)


ALGORITHMS: dict[Operation, dict[str, Builder]] = {
    Operation.BROADCAST: _TREES
    | {"scatter_allgather": lambda p: scatter_all_gather(p.rank, p.size, p.elements)},
    Operation.REDUCE: {name: _mirrored(build) for name, build in _TREES.items()}
    | {"scatter_gather": lambda p: scatter_gather(p.rank, p.size, p.elements)},
    Operation.ALL_GATHER: _ALL_GATHER,
    Operation.REDUCE_SCATTER: {
        "ring": _mirrored(_ALL_GATHER["ring"]),
        "recursive_halving": _mirrored(_ALL_GATHER["recursive_doubling"]),
    },
    Operation.ALL_REDUCE: {
        "ring": _with_reduce(_ALL_GATHER["ring"]),
        "recursive_doubling": lambda p: doubling_all_reduce(p.rank, p.size, p.elements),
        "halving_doubling": _with_reduce(_ALL_GATHER["recursive_doubling"]),
        **{name: _with_reduce(build) for name, build in _TREES.items()},
    },
}
"""Each operation's algorithms. For broadcast and reduce they are written for root 0."""

OPERATIONS = tuple(ALGORITHMS)


def all_to_all(
    rank: int, size: int, count: int, part_of: Callable[[int, int], tuple[int, int]] | None = None
) -> Step:
    """In the first half of a buffer a rank has a part for each, all equally long; the second half
    gets each other's part for it. There is only this algorithm: all at once.

    part_of: gives the parts, by (count, rank), where they do not lie in the order of the ranks.
    """
    half = count // 2
    cut = part_of or (lambda elements, index: part(elements, size, index))
    others = [(rank + step) % size for step in range(1, size)]
    sends = tuple(Transfer(peer, *cut(half, peer)) for peer in others)
    receives = tuple(
        Transfer(peer, half + start, half + stop)
        for peer in reversed(others)
        for start, stop in [cut(half, peer)]
    )
    return Step(sends, receives)


@lru_cache(maxsize=4096)
def schedule(
    operation: Operation,
    algorithm: str,
    rank: int,
    size: int,
    count: int,
    root: int = 0,
    chunk: int = 0,
) -> Schedule:
    """What `rank` does in an operation on `count` elements; chunk in elements (0: all at once)."""
    if not count or size == 1:
        return ()
    if operation == Operation.ALL_TO_ALL:
        return make([all_to_all(rank, size, count)])
    build = ALGORITHMS[operation][algorithm]
    relative = (rank - root) % size
    return rotate(build(Problem(relative, size, count, chunk or count)), root, size)


def algorithms_for(name: str) -> dict[Operation, str]:
    """The operations that an algorithm's name selects: {operation: algorithm}.

    It may be one of another package (`plugins.ALGORITHMS`). UserError if there is none.
    """
    if not any(name in known for known in ALGORITHMS.values()):
        found = plugins.find(plugins.ALGORITHMS, name) or {}
        given = found if isinstance(found, Mapping) else {Operation.ALL_REDUCE: found}
        for operation, build in given.items():
            ALGORITHMS[Operation(operation)][name] = build
    matches = {operation: name for operation, known in ALGORITHMS.items() if name in known}
    if not matches:
        names = sorted({name for known in ALGORITHMS.values() for name in known})
        raise UserError(
            f"algorithm {name!r} is not known: choose auto, native (the MPI library's own) or "
            f"one of {', '.join(names)}"
        )
    return matches
