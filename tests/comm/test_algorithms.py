"""Every algorithm: for every number of ranks and odd sizes, in a simulation of all ranks in one
process with sends that wait for their receivers; and under a real mpiexec.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from osucaffe.comm.algorithms import (
    ALGORITHMS,
    OPERATIONS,
    Schedule,
    Transfer,
    algorithms_for,
    part,
    schedule,
)
from osucaffe.errors import UserError

from .ranks import all_say, needs_mpi


class _Rank:
    """One rank: where it stands, and the transfers of its step that are still under way."""

    def __init__(self, schedule: Schedule, data: np.ndarray) -> None:
        self.schedule = schedule
        self.data = data
        self.at = -1
        self.open = 0
        self.added: list[tuple[Transfer, np.ndarray]] = []


def simulate(schedules: Sequence[Schedule], buffers: Sequence[np.ndarray]) -> None:
    """Run them on the buffers, in place. AssertionError on a deadlock or a wrong pairing."""
    ranks = [_Rank(*pair) for pair in zip(schedules, buffers, strict=True)]
    sends: dict[Any, deque[Transfer]] = defaultdict(deque)
    receives: dict[Any, deque[Transfer]] = defaultdict(deque)
    waiting = set(range(len(ranks)))
    while waiting:
        moved = False
        for number in sorted(waiting):
            moved |= _advance(ranks[number], number, sends, receives)
            if ranks[number].at == len(ranks[number].schedule):
                waiting.discard(number)
        for source, target in list(sends):
            pair = source, target
            while sends[pair] and receives[pair]:
                _move(ranks[source], sends[pair].popleft(), ranks[target], receives[pair].popleft())
                moved = True
        assert moved or not waiting, f"deadlock of ranks {sorted(waiting)}"
    assert not any(sends.values()), "a send that nobody receives"
    assert not any(receives.values()), "a receive that nobody sends"


def _advance(rank: _Rank, number: int, sends: Any, receives: Any) -> bool:
    """Finish the step at hand if all its transfers are done, and begin the next."""
    if rank.open:
        return False
    for transfer, values in rank.added:
        rank.data[transfer.start : transfer.stop] += values
    rank.added = []
    rank.at += 1
    if rank.at < len(rank.schedule):
        step = rank.schedule[rank.at]
        rank.open = len(step.sends) + len(step.receives)
        for each in step.sends:
            sends[number, each.peer].append(each)
        for each in step.receives:
            receives[each.peer, number].append(each)
    return True


def _move(source: _Rank, sent: Transfer, target: _Rank, received: Transfer) -> None:
    assert (sent.start, sent.stop) == (received.start, received.stop)
    values = source.data[sent.start : sent.stop].copy()
    if received.add:
        target.added.append((received, values))
    else:
        target.data[received.start : received.stop] = values
    source.open -= 1
    target.open -= 1


CASES = [(operation, name) for operation in OPERATIONS for name in ALGORITHMS[operation]]


def expected(operation: str, before: list[np.ndarray], root: int) -> list[np.ndarray | None]:
    """What each rank's buffer must hold; NaN where anything may stand."""
    size, count = len(before), len(before[0])
    total = np.sum(before, axis=0)
    if operation == "broadcast":
        return [before[root]] * size
    if operation == "reduce":
        return [total if rank == root else None for rank in range(size)]
    if operation == "all_reduce":
        return [total] * size
    gathered = np.empty(count)
    wanted: list[np.ndarray | None] = []
    for rank in range(size):
        start, stop = part(count, size, rank)
        gathered[start:stop] = before[rank][start:stop]
        own = np.full(count, np.nan)
        own[start:stop] = total[start:stop]
        wanted.append(own)
    return wanted if operation == "reduce_scatter" else [gathered] * size


@pytest.mark.parametrize(("operation", "name"), CASES)
def test_results(operation: str, name: str) -> None:
    generator = np.random.default_rng(1)
    for size in [*range(1, 10), 16, 17, 23]:
        for count, chunk in ((1, 0), (2, 1), (7, 3), (41, 0), (64, 10)):
            for root in {0, size - 1, size // 2} if operation in ("broadcast", "reduce") else {0}:
                buffers = [generator.integers(0, 99, count).astype(float) for _ in range(size)]
                before = [buffer.copy() for buffer in buffers]
                plans = [
                    schedule(operation, name, rank, size, count, root, chunk)
                    for rank in range(size)
                ]
                simulate(plans, buffers)
                for found, wanted in zip(buffers, expected(operation, before, root), strict=True):
                    if wanted is not None:
                        known = ~np.isnan(wanted)
                        np.testing.assert_array_equal(found[known], wanted[known])


@pytest.mark.parametrize("name", ALGORITHMS["all_reduce"])
def test_all_ranks_get_the_same_bits(name: str) -> None:
    generator = np.random.default_rng(2)
    for size in (3, 4, 6):
        buffers = [generator.standard_normal(50).astype(np.float32) for _ in range(size)]
        plans = [schedule("all_reduce", name, rank, size, 50, 0, 7) for rank in range(size)]
        simulate(plans, buffers)
        for other in buffers[1:]:
            np.testing.assert_array_equal(buffers[0], other)


def steps(operation: str, name: str, size: int, count: int = 64, chunk: int = 0) -> int:
    return max(len(schedule(operation, name, rank, size, count, 0, chunk)) for rank in range(size))


def test_the_number_of_steps_is_that_of_the_models() -> None:
    assert steps("broadcast", "binomial", 16) == 4
    assert steps("all_reduce", "recursive_doubling", 16) == 4
    assert steps("all_reduce", "recursive_doubling", 6) == 4
    assert steps("all_reduce", "halving_doubling", 16) == 8
    assert steps("all_reduce", "ring", 5) == 8
    assert steps("reduce", "chain", 4, count=64, chunk=8) == 9


def test_bandwidth_optimal_algorithms_move_little() -> None:
    def sent(name: str, size: int, count: int) -> int:
        return max(
            sum(each.stop - each.start for step in schedule("all_reduce", name, rank, size, count)
                for each in step.sends)
            for rank in range(size)
        )  # fmt: skip

    for name in ("ring", "halving_doubling"):
        assert sent(name, 8, 800) == 2 * 700
    assert sent("recursive_doubling", 8, 800) == 3 * 800


def test_an_unknown_name_is_refused() -> None:
    assert algorithms_for("ring") == dict.fromkeys(
        ("all_gather", "reduce_scatter", "all_reduce"), "ring"
    )
    with pytest.raises(UserError, match=r"choose auto, native .* or one of binomial"):
        algorithms_for("rings")


@needs_mpi
@pytest.mark.parametrize(("ranks", "largest"), [(1, 1000), (2, 16 << 20), (3, 1_000_003), (4, 5)])
def test_every_case(ranks: int, largest: int) -> None:
    all_say("cases right", ranks, "tests.comm.collectives", str(largest))
