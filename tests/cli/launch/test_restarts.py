"""The command that starts ranks: its signals come to rank 0, whatever a launcher makes of them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ..conftest import Cli

RUN = """
import sys
from osucaffe.cli.launch.restarts import run
sys.exit(run([sys.executable, "-c", sys.argv[1], *sys.argv[2:]], {})[0])
"""
TELL = """
import signal, subprocess, sys
def tell(who, *numbers):
    for number in numbers:
        signal.signal(number, lambda number, frame: print(who, number, flush=True))
"""
LAUNCHER = (
    TELL
    + """
tell("launcher", signal.SIGHUP, signal.SIGINT)
sys.exit(subprocess.Popen([sys.executable, "-c", *sys.argv[1:]]).wait())
"""
)
RANK = (
    TELL
    + """
from osucaffe.cli.launch.restarts import tell_parent
from osucaffe.comm.job.job import Job
tell("rank", signal.SIGHUP, signal.SIGINT)
tell_parent(Job())
print("ready", flush=True)
while True:
    signal.pause()
"""
)


def test_signals_come_to_rank_0() -> None:
    """Until two interrupts were of no use: the third is the launcher's."""
    line = [sys.executable, "-c", RUN, LAUNCHER, RANK]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout
        assert command.stdout.readline() == "ready\n"
        told = []
        for number in signal.SIGHUP, signal.SIGINT, signal.SIGINT, signal.SIGINT:
            command.send_signal(number)
            told.append(command.stdout.readline().strip())
        command.send_signal(signal.SIGTERM)  # which ends the rank
    assert told == ["rank 1", "rank 2", "rank 2", "launcher 2"]


@pytest.mark.long
def test_signals_do_the_same_with_several_ranks(ready: Cli) -> None:
    """A hangup writes a snapshot and training goes on; a second Ctrl-C leaves nothing."""
    program = ready.train_without_end("train", "--solver=solver.prototxt", "--ranks=2")
    program.send_signal(signal.SIGHUP)
    assert program.stderr
    assert any("Snapshotting solver state" in line for line in program.stderr)
    assert any("Iteration" in line for line in program.stderr)
    program.send_signal(signal.SIGINT)
    program.send_signal(signal.SIGINT)
    rest = program.communicate(timeout=60)[1]
    assert program.returncode == 130, rest
    assert not list(ready.folder.glob(".*"))
