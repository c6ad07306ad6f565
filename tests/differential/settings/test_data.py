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
        # What the settings of a database come to: plain records at once, some of other lengths.
        {"records": 13, "crop": 4, "mirror": True, "mean": "each", "block": 4, "readers": 3},
        {"records": 200, "batch": 60, "batches": 4, "mirror": True, "crop": 5, "rand_skip": 4},
        {"mixed": True, "crop": 5, "varied": True, "mirror": True, "mean": "one", "readers": 2},
        {"coded": "jpg", "mean": "file", "scale": 0.5, "crop": 5, "cache": "host", "stop": 3},
        {"coded": "jpg", "force": "gray", "mirror": True, "raw": True, "before": 2, "ranks": 3},
        {"coded": "float", "mean": "file", "labelled": False, "phase": "TEST", "crop": 5},
    ],
)
def test_cases(case: Case) -> None:
    KIND.run(case)


@pytest.mark.parametrize("changes", [False, True], ids=["fixed", "daily"])
def test_random_layers(changes: bool) -> None:
    seed = today() if changes else 1
    print(f"python -m {KIND.module} --seed {seed} --cases {CASES}")
    check_cases(KIND, seed, range(CASES))
