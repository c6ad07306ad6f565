"""BatchNorm layers that several ranks train have the mean of the ranks' statistics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comm.ranks import mpiexec, needs_mpi


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3])
def test_statistics_are_averaged(ranks: int, tmp_path: Path) -> None:
    done = mpiexec(ranks, "-m", "tests.parallel.statistics", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("statistics in step") == ranks
