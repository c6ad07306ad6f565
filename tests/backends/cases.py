"""Owns the table of the calls that are tested on every backend: its rows, and what makes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import numpy as np

from osucaffe.backends.random import RandomState

from . import reference
from .running import Output, Spec

STATE = RandomState(seed=7, step=3)
"""The state of the random numbers in all calls."""

Expected = dict[str, Any]
"""By argument."""


class Gradients:
    """Gradients of sum(function(x) * dy) by finite differences, by argument, as function, x and dy:
    computed when a case first runs. values: what else it should write."""

    def __init__(self, values: Expected | None = None, **of: tuple[Any, ...]) -> None:
        self.values, self.of = values or {}, of

    def outputs(self, known: Container[str]) -> dict[str, Output]:
        """What stands for those that are not known yet, by argument."""
        like = self.values | {name: x for name, (_, x, _) in self.of.items()}
        return {name: Output(np.shape(each)) for name, each in like.items() if name not in known}

    def __call__(self) -> Expected:
        found = {name: reference.gradient(*given) for name, given in self.of.items()}
        return self.values | found


@dataclass
class Case:
    """One call and what it should write: values, or what computes them when the case first runs.

    tensors: an output that they lack has the shape of its values. first: a call of the same tensors
    to run before it.
    """

    label: str
    name: str
    tensors: dict[str, Spec]
    settings: dict[str, Any]
    expect: Expected | Callable[[], Expected]
    first: tuple[str, dict[str, Spec], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        expect = self.expect if isinstance(self.expect, Gradients) else Gradients(
            None if callable(self.expect) else self.expect
        )  # fmt: skip
        self.tensors = self.tensors | expect.outputs(self.tensors)

    @functools.cached_property
    def expected(self) -> Expected:
        """What to find in which output."""
        return self.expect() if callable(self.expect) else self.expect


CASES: list[Case] = []
random = np.random.default_rng(0)


def case(*row: Any) -> None:
    """Add a row to the table: see `Case`."""
    CASES.append(Case(*row))


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
