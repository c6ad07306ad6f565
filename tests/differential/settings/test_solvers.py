"""Random solver settings train as NumPy does, and go on from their snapshots to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comm.ranks import mpiexec, needs_mpi

from ..search import Case, check_cases, today
from .solvers import KIND

CASES = 25


@pytest.mark.parametrize(
    "case",
    [
        {"rampup_interval": 1, "min_lr": 0.005},  # the least rate held only behind the ramp
        {"lr_policy": "multistep", "gamma": 0.9, "stepvalue": (1, 2, 5, 5)},
        {"lr_policy": "multistep", "gamma": 0.9, "stepvalue": (2, 3, 7), "rampup_interval": 5},
    ],
)
def test_what_once_failed(case: Case) -> None:
    KIND.run(case)


@pytest.mark.parametrize("changes", [False, True], ids=["fixed", "daily"])
def test_random_settings(changes: bool) -> None:
    seed = today() if changes else 1
    print(f"python -m {KIND.module} --seed {seed} --cases {CASES}")
    check_cases(KIND, seed, range(CASES))


@needs_mpi
def test_ranks_train_as_one_with_their_batches_together(tmp_path: Path) -> None:
    done = mpiexec(2, "-m", "tests.differential.settings.ranks", str(tmp_path), "1", "8")
    assert done.returncode == 0, done.stderr
