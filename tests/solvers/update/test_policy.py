"""The learning-rate policies: their steps, and what is refused; their formulas are checked beside
NumPy's, in tests/differential/settings."""

from __future__ import annotations

import math

import pytest

from osucaffe.errors import UserError
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers.update.policy import Policy


def test_a_plateau_of_the_loss_lowers_the_rate() -> None:
    losses = [math.nan, 5, 4, 4, 4.5, 4, 3, 3, 3, 3, 3, 3]
    settings = 'base_lr: 1 lr_policy: "plateau" gamma: 0.1 plateau_winsize: 3 plateau_winsize: 2'
    left = iter(losses)
    policy = Policy(parse_text(settings, SolverParameter), loss=lambda: next(left))
    rates = [policy.rate(iteration) for iteration in range(len(losses))]
    # The least loss at 2: three without a lesser one; then at 6: two; then no step is left.
    wanted = [1.0] * 5 + [0.1] * 3 + [0.01] * 4
    assert rates == pytest.approx(wanted)
    assert policy.best == [3, 8]


@pytest.mark.parametrize(
    "settings",
    [
        'lr_policy: "step" gamma: 1e38 stepsize: 1',
        'lr_policy: "exp" gamma: 1e38',
        'lr_policy: "inv" gamma: -1 power: 1',
        'lr_policy: "inv" gamma: -1 power: 0.5',
    ],
)
def test_a_rate_that_is_no_number_ends_training(settings: str) -> None:
    param = parse_text(f"base_lr: 0.1 {settings}", SolverParameter)
    policy = Policy(param)
    with pytest.raises(UserError, match="the learning rate is not a number: correct gamma"):
        list(map(policy.rate, range(20)))


def test_an_iteration_passes_one_step_at_most() -> None:
    settings = 'base_lr: 1 lr_policy: "multistep" gamma: 0.1 ' + "stepvalue: 2 " * 3
    policy = Policy(parse_text(settings, SolverParameter))
    wanted = [1, 1, 0.1, 0.01, 0.001, 0.001]
    assert policy.ahead(0, 6) == pytest.approx(wanted)
    assert [policy.rate(iteration) for iteration in range(4)] == pytest.approx(wanted[:4])
    assert policy.ahead(4, 2) == pytest.approx(wanted[4:])
    resumed = Policy(parse_text(settings, SolverParameter))
    resumed.current_step = policy.current_step
    assert [resumed.rate(iteration) for iteration in (4, 5)] == pytest.approx(wanted[4:])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("", "lr_policy is missing; choose one of fixed, step"),
        ('lr_policy: "stp"', "lr_policy 'stp' is not known; choose one of fixed, step"),
        ('lr_policy: "fixed"', "base_lr is missing, nothing would be learnt"),
        ('lr_policy: "step" gamma: 0.1', "needs the field stepsize"),
        ('lr_policy: "step" gamma: 0.1 stepsize: 0', "stepsize must be positive"),
        ('lr_policy: "multistep" gamma: 0.1', "needs the field stepvalue"),
        ('lr_policy: "multistep" gamma: 0.1 stepvalue: 2 stepvalue: 1', "must not fall"),
        ('lr_policy: "multifixed" stagelr: 1 stageiter: 2 stageiter: 3', "1 stagelr, but 2 stage"),
        (
            'lr_policy: "multifixed" stagelr: 1 stageiter: 4 stagelr: 2 stageiter: 3',
            "the stageiters must not fall",
        ),
        ('base_lr: 1 lr_policy: "fixed" min_lr: 2', "min_lr must be between 0 and base_lr"),
        (
            'base_lr: 1 lr_policy: "fixed" warmup_iter: 3 rampup_interval: 3',
            "warmup_iter or rampup_interval, not both",
        ),
    ],
)
def test_what_is_refused(settings: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        Policy(parse_text(settings, SolverParameter), "s.prototxt")
