"""Work in the background is done once, by whoever comes first."""

from __future__ import annotations

import threading

import pytest

from osucaffe.backends.cuda.runtime import background
from osucaffe.backends.cuda.runtime.background import Task, begin


def test_who_needs_a_result_does_not_wait_for_what_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})  # one thread beside this one
    pool = background._pool.__wrapped__()
    monkeypatch.setattr(background, "_pool", lambda: pool)
    go_on, threads = threading.Event(), []
    first = begin(go_on.wait)
    second = begin(lambda: threads.append(threading.current_thread()))
    second.result()
    assert threads == [threading.current_thread()]
    go_on.set()
    assert first.result()
    pool.shutdown()
    assert len(threads) == 1


def test_work_is_done_once() -> None:
    done: list[int] = []
    task = Task(lambda: done.append(1) or len(done))
    for _ in range(3):
        assert task.result() == 1


def test_what_it_raises_is_raised_to_all() -> None:
    task = begin(lambda: 1 // 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            task.result()
