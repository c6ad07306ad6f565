"""The watchdog reports what takes too long, and nothing else."""

from __future__ import annotations

import threading
import time

from osucaffe.comm.watchdog import Watchdog


def test_a_slow_operation_is_reported_once() -> None:
    told: list[str] = []
    done = threading.Event()

    def expire(text: str) -> None:
        told.append(text)
        done.set()

    watchdog = Watchdog(0.1, expire)
    with watchdog.watch(lambda: "waiting for rank 1"):
        assert done.wait(5)
    assert told == ["waiting for rank 1"]


def test_one_around_another_is_reported_as_well() -> None:
    told: list[str] = []
    done = threading.Event()
    watchdog = Watchdog(0.1, lambda text: (told.append(text), done.set())[1])
    with watchdog.watch(lambda: "outer"):
        with watchdog.watch(lambda: "inner"):
            pass
        assert done.wait(5)
    assert told == ["outer"]


def test_quick_operations_are_not() -> None:
    told: list[str] = []
    watchdog = Watchdog(0.5, told.append)
    for _ in range(20):
        with watchdog.watch(lambda: "slow"):
            time.sleep(0.001)
    time.sleep(0.7)
    assert not told


def test_without_a_timeout_there_is_no_thread() -> None:
    before = threading.active_count()
    with Watchdog(0, print).watch(lambda: "slow"):
        assert threading.active_count() == before
