"""Owns schedules: what one rank sends and receives, step by step, in a collective operation.

A schedule speaks of ranges of one flat buffer and of nothing else, so it is a pure function of
(rank, size, count). Whatever can send and receive can carry it out: MPI, NCCL, a simulation.

A broadcast that is run backwards, every message in the other direction and added where it
arrives, is a reduction (`mirror`): in the one each rank gets each element once and passes it on,
in the other it gathers what it will pass on once. So only the spreading half is written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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
    """The schedule of these steps, without transfers of nothing and steps without transfers."""
    kept = []
    for step in steps:
        sends = tuple(each for each in step.sends if each.start < each.stop)
        receives = tuple(each for each in step.receives if each.start < each.stop)
        if sends or receives:
            kept.append(Step(sends, receives))
    return tuple(kept)


def mirror(schedule: Schedule, add: bool = True) -> Schedule:
    """The reduction that is this broadcast (or all-gather) run backwards.

    add: without, what arrives overwrites: a scatter becomes a gather.
    """
    return tuple(
        Step(
            tuple(each._replace(add=False) for each in reversed(step.receives)),
            tuple(each._replace(add=add) for each in reversed(step.sends)),
        )
        for step in reversed(schedule)
    )


def rotate(schedule: Schedule, root: int, size: int) -> Schedule:
    """A schedule for root 0 made one for `root`: the peers count from there."""
    if not root:
        return schedule

    def turn(transfers: tuple[Transfer, ...]) -> tuple[Transfer, ...]:
        return tuple(each._replace(peer=(each.peer + root) % size) for each in transfers)

    return tuple(Step(turn(step.sends), turn(step.receives)) for step in schedule)


def added(step: Step) -> int:
    """How many elements a step receives to add: they need scratch memory."""
    return sum(each.stop - each.start for each in step.receives if each.add)
