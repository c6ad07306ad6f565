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


OWN = {"type": "Nesterov", "momentum": 0.9, "net.multipliers": ((2.0, 1.0), (0.0, 1.0), (1.0, 0.0))}


@pytest.mark.parametrize(
    "own",
    [
        {"larc": True, "larc_eta": 0.1},
        {"larc": True, "larc_eta": 0.1, "larc_policy": "clip", "regularization_type": "L1"},
        {"local_lr_auto": True, "local_gw_ratio": 0.1},
    ],
)
@pytest.mark.parametrize(
    "case",
    [
        {"net.depth": 3, "net.activation": "TanH", "iter_size": 2, "clip_gradients": 0.5},
        {"run.loss_scale": "dynamic", "clip_gradients": 0.05},
        {"net.bias": False, "net.multipliers": ((0.0, 1.0),)},  # nothing learns
    ],
)
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_own_rates_of_parameters(own: Case, case: Case, decay: float) -> None:
    KIND.run({**OWN, **own, **case, "weight_decay": decay})


@pytest.mark.parametrize("changes", [False, True], ids=["fixed", "daily"])
def test_random_settings(changes: bool) -> None:
    seed = today() if changes else 1
    print(f"python -m {KIND.module} --seed {seed} --cases {CASES}")
    check_cases(KIND, seed, range(CASES))


@needs_mpi
def test_ranks_train_as_one_with_their_batches_together(tmp_path: Path) -> None:
    done = mpiexec(2, "-m", "tests.differential.settings.ranks", str(tmp_path), "1", "8")
    assert done.returncode == 0, done.stderr
