"""No rank outlives the process that has started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.comm.ranks import command, needs_mpi

WORK = """
import os, sys, time
from osucaffe.comm.job.job import find_job
job = find_job()
open(f"{sys.argv[1]}/{job.rank}.new", "w").write(f"{os.getpid()} {os.getppid()}")
os.rename(f"{sys.argv[1]}/{job.rank}.new", f"{sys.argv[1]}/{job.rank}")
time.sleep(120)
"""
LONGEST = 10.0


def runs(process: int) -> bool:
    """Whether it does; what waits to be collected does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@needs_mpi
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("killed", ["the launcher", "what started the ranks"])
def test_ranks_end_with_what_has_started_them(killed: str, tmp_path: Path) -> None:
    line, environment = command(2, "-c", WORK, str(tmp_path))
    launcher = subprocess.Popen(
        line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ranks: list[int] = []
    try:
        told = [tmp_path / "0", tmp_path / "1"]
        while not all(file.exists() for file in told):
            assert launcher.poll() is None
            time.sleep(0.02)
        pairs = [tuple(map(int, file.read_text().split())) for file in told]
        ranks = [process for process, _ in pairs]
        os.kill(launcher.pid if killed == "the launcher" else pairs[0][1], signal.SIGKILL)
        end = time.monotonic() + LONGEST
        while any(map(runs, ranks)) and time.monotonic() < end:
            time.sleep(0.02)
        assert not any(map(runs, ranks))
        assert launcher.wait(LONGEST) != 0
    finally:
        launcher.kill()
        launcher.wait()
        for process in filter(runs, ranks):
            os.kill(process, signal.SIGKILL)
