"""The watchdog reports what takes too long, and nothing else."""

from __future__ import annotations

import threading

import pytest

from osucaffe.comm.job import watchdog
from osucaffe.comm.job.watchdog import Watchdog

WAKES = 60
"""Seconds within which a watchdog that works does what it is to do."""


class Clock:
    """Stands for `time`: it goes on when the test says so, and then wakes the watchdog up."""

    def __init__(self) -> None:
        self._now = 0.0
        self._wakes = threading.Semaphore(0)
        self._slept = threading.Semaphore(0)

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._slept.release()
        self._wakes.acquire()

    def advance(self, seconds: float) -> None:
        assert self._slept.acquire(timeout=WAKES)  # the watchdog has looked at all that there was
        self._now += seconds
        self._wakes.release()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(watchdog, "time", made)
    return made


class Told(list[str]):
    """The messages. `come`: one is there."""

    def __init__(self) -> None:
        super().__init__()
        self.come = threading.Event()

    def expire(self, text: str) -> None:
        self.append(text)
        self.come.set()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def watching(clock: Clock, told: Told) -> Watchdog:
    """It reports after 10 seconds."""
    return Watchdog(10, told.expire)


def test_a_slow_operation_is_reported_once(clock: Clock, told: Told, watching: Watchdog) -> None:
    with watching.watch(lambda: "waiting for rank 1"):
        clock.advance(11)
        assert told.come.wait(WAKES)
    assert told == ["waiting for rank 1"]


def test_one_around_another_is_reported_as_well(
    clock: Clock, told: Told, watching: Watchdog
) -> None:
    with watching.watch(lambda: "outer"):
        with watching.watch(lambda: "inner"):
            clock.advance(9)
        clock.advance(9)
        assert told.come.wait(WAKES)
    assert told == ["outer"]


def test_quick_operations_are_not(clock: Clock, told: Told, watching: Watchdog) -> None:
    for _ in range(20):
        with watching.watch(lambda: "quick"):
            clock.advance(9)
    clock.advance(11)
    clock.advance(0)
    assert not told


def test_without_a_timeout_there_is_no_thread() -> None:
    before = set(threading.enumerate())
    with Watchdog(0, print).watch(lambda: "slow"):
        assert set(threading.enumerate()) <= before
