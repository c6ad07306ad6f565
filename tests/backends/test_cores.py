"""How many cores there are, where the system tells and where it does not."""

from __future__ import annotations

import os

import pytest

from osucaffe.backends.cores import computing_threads, idle_seconds, usable_cores
from osucaffe.backends.cpu import Cpu
from osucaffe.comm.job.job import Job
from osucaffe.comm.job.topology import discover


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no such thing")
def test_the_cores_of_this_process_count() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert usable_cores() == len(before)


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores() == Cpu().threads == discover(Job()).local.cores == 5


@pytest.mark.parametrize(
    ("variable", "alone", "shared"),
    [("3", 3, 3), ("2,1", 2, 2), ("", 8, 4), ("0", 8, 4), ("many", 8, 4)],
)
def test_threads_are_those_of_the_variable_or_the_cores(
    monkeypatch: pytest.MonkeyPatch, variable: str, alone: int, shared: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert computing_threads() == Cpu().threads == alone
    assert computing_threads(2) == shared
    assert computing_threads(99) == (shared if variable[:1] in ("2", "3") else 1)
    assert Cpu(threads=5).threads == 5


def test_idle_time_does_not_go_back() -> None:
    first = idle_seconds()
    assert 0 <= first <= idle_seconds()


def test_no_idle_time_is_seen_where_the_system_does_not_tell(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    assert idle_seconds() == 0
