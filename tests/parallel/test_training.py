"""N ranks with batch B train as one with batch N·B, however gradients and weights travel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.comm.ranks import mpiexec, needs_mpi


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_equivalence(ranks: int, tmp_path: Path) -> None:
    done = mpiexec(ranks, "-m", "tests.parallel.equivalence", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"rank \d: \d+ cases alike", done.stdout)) == ranks
