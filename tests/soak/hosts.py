"""The faults between two hosts (network namespaces): of their links, and their standstill."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from benchmarks.hosts import Hosts, hosts
from tests.comm.ranks import MPIEXEC

from .jobs import (
    LONGEST_RUN,
    Round,
    Task,
    await_moment,
    command,
    left,
    processes,
    resumed,
    start,
)

FAULTS = ("slow link", "cut link", "link down and up", "host stands still", "lost packets")
_LASTING = ("cut link", "host stands still")
"""After which a job cannot go on. The others pass, and it may go on or end with a message."""
_TIMEOUT = 5
"""Seconds that a rank waits for another; a link that is cut is to end the job without that."""
_TOLD = re.compile(r"osucaffe: rank \d of 2 .*(waiting for ranks? \d|of rank \d)", re.IGNORECASE)


def permitted() -> bool:
    """Whether there can be such hosts here."""
    with tempfile.TemporaryDirectory() as folder, hosts(1, "1gbit", Path(folder)) as made:
        return MPIEXEC is not None and made is not None


@contextlib.contextmanager
def _struck(random: Random, fault: str, made: Hosts, host: int) -> Iterator[None]:
    """Inside, a host has the fault that lasts; or had the one that passes."""
    for_a_while = random.uniform(0.5, 3)
    if fault == "host stands still":
        stopped = made.processes(host)
        _signal(stopped, signal.SIGSTOP)
        yield
        _signal(stopped, signal.SIGCONT)
        return
    if fault == "slow link":
        made.set_rate(host, "8kbit", "2kb")
        time.sleep(for_a_while)
        made.set_rate(host, "1gbit")
    elif fault == "lost packets":
        for _ in range(20):  # all that are under way in such a moment
            made.set_link(host, up=False)
            time.sleep(random.uniform(0, 0.05))
            made.set_link(host, up=True)
            time.sleep(random.uniform(0, 0.1))
    else:
        made.set_link(host, up=False)
        if fault == "link down and up":
            time.sleep(for_a_while)
            made.set_link(host, up=True)
    yield
    made.set_link(host, up=True)


def one_round(task: Task, random: Random, fault: str, folder: Path) -> Round:
    """Train on two hosts, do it, and go on."""
    assert MPIEXEC is not None
    with tempfile.TemporaryDirectory() as top, hosts(2, "1gbit", Path(top)) as made:
        assert made is not None
        patience = [] if fault == "cut link" else ["--comm_timeout", str(_TIMEOUT)]
        line, environment = made.command(MPIEXEC, [1, 1], command(*patience))
        environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        job = start(task, folder, line, environment)
        wrong = [] if await_moment(task, random, folder, job) else ["no snapshot"]
        seconds, hanging = _strike(random, fault, folder, job, made, task.longest)
        wrong += hanging
        for process in processes(folder):
            wrong.append("hang")
            os.kill(process, signal.SIGKILL)
        code = job.wait()
        wrong += left(folder)
        if code and not _TOLD.search((folder / "log").read_text()):
            wrong.append("nobody says for whom it waited")
        if fault in _LASTING and not code:
            wrong.append("exit code 0")
        wrong += resumed(task, folder, start(task, folder, line, environment), 2)
        return Round(wrong, code, seconds)


def _strike(
    random: Random,
    fault: str,
    folder: Path,
    job: subprocess.Popen,
    made: Hosts,
    longest: float,
) -> tuple[float, list[str]]:
    """Seconds until all had ended that can, and what had not in time: with the fault that lasts,
    all but a host that stands still; when it is over, all."""
    host = random.randrange(2)
    lasting = fault in _LASTING
    still = set(made.processes(host)) if fault == "host stands still" else set()
    with _struck(random, fault, made, host):
        struck = time.monotonic()
        if lasting:
            _await(lambda: set(processes(folder)) <= still, longest)
        seconds, late = time.monotonic() - struck, set(processes(folder)) - still
    _await(lambda: not processes(folder), longest if lasting else LONGEST_RUN)
    if not lasting:
        return time.monotonic() - struck, []
    return seconds, ["processes run on beside the fault"] * bool(late)


def _await(over: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not over() and time.monotonic() < until:
        time.sleep(0.05)


def _signal(those: list[int], number: int) -> None:
    for process in those:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
