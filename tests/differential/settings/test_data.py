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
        {"records": 23, "batch": 7, "batches": 14, "block": 4, "cache": "device", "crop": 4},
        # What other layers read, each with and without chance.
        {"layer": "ImageData", "coded": "jpg", "root": True, "mean": "one", "scale": 0.5},
        {"layer": "ImageData", "coded": "png", "resized": (10, 12), "colour": False, "crop": 8,
         "phase": "TEST"},
        {"layer": "ImageData", "coded": "jpg", "shuffle": True, "crop": 4, "mirror": True,
         "batches": 10, "ranks": 3, "raw": True},
        {"layer": "ImageData", "coded": "png", "shuffle": True, "rand_skip": 3, "varied": True,
         "crop": 5, "cache": "device", "batches": 10},
        {"layer": "HDF5Data", "records": 12, "files": 3, "dtype": "int32", "batches": 8},
        {"layer": "HDF5Data", "records": 12, "files": 3, "shuffle": True, "cache": "device",
         "batches": 20, "ranks": 3},
        {"layer": "HDF5Data", "records": 13, "files": 3, "block": 4, "batches": 20, "ranks": 3},
        {"layer": "ImageData", "coded": "png", "records": 13, "block": 3, "batches": 10},
        {"layer": "MemoryData", "records": 6, "batches": 5},
        {"layer": "MemoryData", "records": 6, "added": True, "scale": 0.5, "mean": "each"},
        {"layer": "WindowData", "coded": "png", "crop": 8, "batch": 8, "cache_images": True,
         "mean": "file", "scale": 2.0, "context": 1, "batches": 10},
        {"layer": "WindowData", "coded": "png", "crop": 8, "batch": 8, "fraction": 1.0,
         "mirror": True, "square": True, "readers": 3, "batches": 10},
    ],
)  # fmt: skip
def test_cases(case: Case) -> None:
    KIND.run(case)


@pytest.mark.parametrize(
    "changes",
    [pytest.param(False, marks=pytest.mark.long, id="fixed"), pytest.param(True, id="daily")],
)
def test_random_layers(changes: bool) -> None:
    seed = today() if changes else 1
    print(f"python -m {KIND.module} --seed {seed} --cases {CASES}")
    check_cases(KIND, seed, range(CASES))
