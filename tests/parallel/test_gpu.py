"""Training on several GPUs is training on one with the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comm.ranks import mpiexec, needs_mpi
from tests.comm.test_gpu import gpus

pytestmark = [pytest.mark.gpu, needs_mpi]


def test_equivalence(tmp_path: Path) -> None:
    done = mpiexec(gpus(), "-m", "tests.parallel.gpu_training", str(tmp_path), timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cases alike") == gpus()
