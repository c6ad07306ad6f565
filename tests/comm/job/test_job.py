"""A job of real ranks: they leave no shared memory behind, end with what has started them, and send
less between hosts by two levels than by one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.hosts import hosts

from ..ranks import command, mpiexec, needs_mpi

SHARE = """
from osucaffe.comm.job.job import find_job
job = find_job()
job.barrier()
lines = [line.rstrip() for line in open("/proc/self/maps") if "/mpich_shm_" in line]
nameless = all(line.endswith("(deleted)") for line in lines)
# In one piece: the other rank writes at the same time. There are no lines with another MPI.
print(f"{nameless} {job.gather(job.rank)}\\n", end="")
"""


@needs_mpi
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_shared_memory_has_no_name_once_all_ranks_have_it() -> None:
    done = mpiexec(2, "-c", SHARE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True [0, 1]"] * 2


WISHES = """
import weakref
from osucaffe.comm.job.job import find_job

class Watched:
    def __init__(self, request, memory):
        self.request, self.memory = request, weakref.ref(memory)
    def Wait(self):
        print(f"{self.memory() is not None}\\n", end="")
        self.request.Wait()

job = find_job()
with job.together():
    job.agree(0)
    job._wishes.append([(Watched(request, got), given, got)
                        for request, given, got in [job._wishes.pop()]][0])
"""


@needs_mpi
def test_memory_for_the_last_answers_stays_until_they_are_there() -> None:
    done = mpiexec(2, "-c", WISHES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True"] * 2


@needs_mpi
def test_hierarchical_sends_less_between_hosts_than_flat_algorithms(tmp_path: Path) -> None:
    with hosts(2, "10gbit", tmp_path) as made:
        if made is None:
            pytest.skip("network namespaces are not permitted here")
        done = made.mpiexec(2, "-m", "tests.comm.two_levels")
        names = made.names
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout.strip().splitlines()[-1])
    assert sent.pop("hosts") == [[name] * 2 for name in names]
    hierarchical = sent.pop("hierarchical")
    assert sent.pop("binomial") > 0.99  # one way after the other
    assert 0.99 < hierarchical < 1.2 < min(sent.values()), (hierarchical, sent)


SLEEP = """
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
    line, environment = command(2, "-c", SLEEP, str(tmp_path))
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
