"""Random data layers bring what a model in NumPy says, however their records are read."""

from __future__ import annotations

import pytest

from ..search import Case, check_cases, today
from .data import KIND

CASES = 16


@pytest.mark.parametrize(
    "case",
    [
        # A window whose overlap is the threshold: both are 32-bit numbers.
        {"layer": "WindowData", "crop": 7, "coded": "jpg", "thresholds": (0.2, 0.2)},
        {"layer": "WindowData", "crop": 7, "coded": "jpg", "batch": 10, "fraction": 0.7},
    ],
)
def test_what_once_failed(case: Case) -> None:
    KIND.run(case)


@pytest.mark.parametrize("changes", [False, True], ids=["fixed", "daily"])
def test_random_layers(changes: bool) -> None:
    seed = today() if changes else 1
    print(f"python -m {KIND.module} --seed {seed} --cases {CASES}")
    check_cases(KIND, seed, range(CASES))
