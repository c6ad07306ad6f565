"""The MPI communicator under a real mpiexec: each operation, algorithm, type and odd size."""

from __future__ import annotations

import re

import pytest

from .ranks import mpiexec, needs_mpi


@needs_mpi
@pytest.mark.parametrize(("ranks", "largest"), [(1, 1000), (2, 16 << 20), (3, 1_000_003), (4, 5)])
def test_every_case(ranks: int, largest: int) -> None:
    done = mpiexec(ranks, "-m", "tests.comm.collectives", str(largest))
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"rank \d: \d+ cases right", done.stdout)) == ranks
