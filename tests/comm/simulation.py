"""Carries out schedules of all ranks in one process, with sends that wait for their receivers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from osucaffe.comm.algorithms import Schedule, Transfer


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
