"""The learning-rate policies: their formulas, and what is refused."""

from __future__ import annotations

import math

import pytest

from osucaffe.errors import UserError
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers.policy import NEEDS, Policy

CASES = [
    ('lr_policy: "fixed"', {0: 0.5, 1000: 0.5}),
    ('lr_policy: "step" gamma: 0.1 stepsize: 10', {0: 0.5, 9: 0.5, 10: 0.05, 25: 0.005}),
    ('lr_policy: "exp" gamma: 0.5', {0: 0.5, 1: 0.25, 3: 0.0625}),
    ('lr_policy: "inv" gamma: 0.25 power: 0.5', {0: 0.5, 12: 0.25}),
    (
        'lr_policy: "multistep" gamma: 0.1 stepvalue: 5 stepvalue: 8',
        {0: 0.5, 4: 0.5, 5: 0.05, 7: 0.05, 8: 0.005, 100: 0.005},
    ),
    ('lr_policy: "poly" power: 2 max_iter: 10', {0: 0.5, 5: 0.125, 10: 0, 11: 0}),
    (
        'lr_policy: "sigmoid" gamma: -0.5 stepsize: 4',
        {4: 0.25, 6: 0.5 / (1 + math.e), 2: 0.5 / (1 + 1 / math.e)},
    ),
]


@pytest.mark.parametrize(("settings", "rates"), CASES, ids=[case[0][12:16] for case in CASES])
def test_rates(settings: str, rates: dict[int, float]) -> None:
    policy = Policy(parse_text("base_lr: 0.5 " + settings, SolverParameter))
    for iteration, rate in rates.items():
        assert policy.rate(iteration) == pytest.approx(rate, rel=1e-6)


def test_every_policy_has_a_case() -> None:
    assert len(CASES) == len(NEEDS)


def test_steps_are_counted_for_the_state() -> None:
    settings = 'base_lr: 1 lr_policy: "multistep" gamma: 0.1 stepvalue: 5 stepvalue: 8'
    policy = Policy(parse_text(settings, SolverParameter))
    counts = []
    for iteration in range(10):
        policy.rate(iteration)
        counts.append(policy.current_step)
    assert counts == [0, 0, 0, 0, 0, 1, 1, 1, 2, 2]


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
    ],
)
def test_what_is_refused(settings: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        Policy(parse_text(settings, SolverParameter), "s.prototxt")
