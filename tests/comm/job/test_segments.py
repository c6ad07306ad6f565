"""No rank's end can leave MPICH's shared memory behind: it has lost its name by then."""

from __future__ import annotations

import sys

import pytest

from ..ranks import mpiexec, needs_mpi

WORK = """
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
    done = mpiexec(2, "-c", WORK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True [0, 1]"] * 2
