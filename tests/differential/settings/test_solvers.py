"""Random solver settings train as NumPy does, and go on from their snapshots to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from osucaffe.solvers.update import rules
from osucaffe.solvers.update.policy import NEEDS
from tests.comm.ranks import mpiexec, needs_mpi

from ..search import Case, check_cases, today
from .solvers import KIND

CASES = 25


STEP: Case = {"lr_policy": "step", "gamma": 0.1}
POLICIES: list[Case] = [
    {**STEP, "stepsize": 2, "min_lr": 0.002},
    {**STEP, "stepsize": 4, "warmup_iter": 3, "warmup_start_lr": 0.02},
    {"lr_policy": "exp", "gamma": 0.5, "rampup_interval": 4, "rampup_lr": 0.02},
    {"lr_policy": "inv", "gamma": 0.25, "power": 0.5},
    {"lr_policy": "poly", "power": 2.0, "min_lr": 0.02, "max_iter": 6},
    {"lr_policy": "sigmoid", "gamma": -0.5, "stepsize": 4},
    {"lr_policy": "plateau", "gamma": 0.5, "plateau_winsize": (1, 1, 1), "average_loss": 2},
    {"lr_policy": "multifixed", "stagelr": (0.1, 0.03), "stageiter": (2, 4)},
    {"lr_policy": "multistep", "gamma": 0.9, "stepvalue": (2, 3, 7), "rampup_interval": 5},
    # These once failed.
    {"rampup_interval": 1, "min_lr": 0.005},  # the least rate held only behind the ramp
    {"lr_policy": "multistep", "gamma": 0.9, "stepvalue": (1, 2, 5, 5)},
]
RULES: list[Case] = [
    {"momentum": 0.9},
    {"type": "Nesterov", "momentum": 0.9},
    {"type": "AdaGrad"},
    {"type": "RMSProp", "rms_decay": 0.9},
    {"type": "AdaDelta", "momentum": 0.95, "delta": 1e-6},
    {"type": "Adam", "momentum": 0.9, "momentum2": 0.999},
    {"type": "LAMB", "momentum": 0.9, "momentum2": 0.999},
]


def test_all_have_a_case() -> None:
    assert {case.get("lr_policy", "fixed") for case in POLICIES} == set(NEEDS)
    assert {rule.get("type", "SGD") for rule in RULES} == set(rules.RULES)


@pytest.mark.parametrize("case", POLICIES)
def test_policies(case: Case) -> None:
    KIND.run({"display": 1, **case})


@pytest.mark.parametrize("scale", ["1024", "dynamic"])
@pytest.mark.parametrize("rule", RULES)
def test_rules(rule: Case, scale: str) -> None:
    more = {"iter_size": 3, "clip_gradients": 0.05, "weight_decay": 0.01, "display": 2}
    form = {"average_loss": 3, "snapshot_format": "HDF5"} if scale == "1024" else {}
    KIND.run({**rule, **more, **form, "run.loss_scale": scale})


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


@pytest.mark.parametrize(
    "changes",
    [pytest.param(False, marks=pytest.mark.long, id="fixed"), pytest.param(True, id="daily")],
)
def test_random_settings(changes: bool) -> None:
    seed = today() if changes else 1
    print(f"python -m {KIND.module} --seed {seed} --cases {CASES}")
    check_cases(KIND, seed, range(CASES))


@needs_mpi
def test_ranks_train_as_one_with_their_batches_together(tmp_path: Path) -> None:
    done = mpiexec(2, "-m", "tests.differential.settings.ranks", str(tmp_path), "1", "8")
    assert done.returncode == 0, done.stderr
