"""Owns the table of the calls that are tested on every backend: its rows, and what makes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from osucaffe.backends.random import RandomState

from .running import Spec

STATE = RandomState(seed=7, step=3)
"""The state of the random numbers in all calls."""


@dataclass
class Case:
    """One call and what it should write: computed when the case first runs, for all backends.

    first: a call of the same tensors to run before it.
    """

    label: str
    name: str
    tensors: dict[str, Spec]
    settings: dict[str, Any]
    expect: Callable[[], dict[str, Any]]
    first: tuple[str, dict[str, Spec], dict[str, Any]] | None = None
    _expected: dict[str, Any] = field(default_factory=dict)

    @property
    def expected(self) -> dict[str, Any]:
        """What to find in which output."""
        self._expected = self._expected or self.expect()
        return self._expected


CASES: list[Case] = []
random = np.random.default_rng(0)


def case(
    label: str,
    name: str,
    tensors: dict[str, Spec],
    settings: dict[str, Any],
    expect: Callable[[], dict[str, Any]],
    first: tuple[str, dict[str, Spec], dict[str, Any]] | None = None,
) -> None:
    """Add a row to the table."""
    CASES.append(Case(label, name, tensors, settings, expect, first))


def normal(*shape: int) -> np.ndarray:
    """Random numbers that float32 holds, in float64."""
    return random.standard_normal(shape).astype(np.float32).astype(np.float64)


def eighths(*shape: int) -> np.ndarray:
    """Random multiples of 1/8, which 16-bit formats hold too: comparisons stay as they are."""
    return np.round(8 * normal(*shape)) / 8


def distinct(*shape: int) -> np.ndarray:
    """Whole numbers that differ inside each channel, which 16-bit formats hold too."""
    planes = [random.permutation(math.prod(shape[2:])) for _ in range(shape[0] * shape[1])]
    return np.array(planes, np.float64).reshape(shape)


def labels(classes: int, *shape: int) -> np.ndarray:
    """Random whole numbers below classes."""
    return random.integers(classes, size=shape).astype(np.float64)
