"""The table of the calls that are tested on every backend: its rows, and what makes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from osucaffe.backends.random import RandomState
from tests.backends import reference
from tests.backends.running import Output, Spec

STATE = RandomState(seed=7, step=3)
"""The state of the random numbers in all calls."""

Expected = dict[str, Any]
"""By argument."""


class Gradients:
    """Gradients of sum(function(x) * dy) by finite differences, by argument, as function, x and dy:
    computed when a case first runs. values: what else it should write."""

    def __init__(self, values: Expected | None = None, **of: tuple[Any, ...]) -> None:
        self.values, self.of = values or {}, of

    def compute(self) -> Expected:
        return self.values | {name: reference.gradient(*given) for name, given in self.of.items()}


@dataclass
class Case:
    """One call and what it should write.

    tensors: an output that they lack has the shape of what is expected. first: a call of the same
    tensors to run before it.
    """

    label: str
    name: str
    tensors: dict[str, Spec]
    settings: dict[str, Any]
    expect: Expected | Gradients
    first: tuple[str, dict[str, Spec], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        gradients = Gradients(self.expect) if isinstance(self.expect, dict) else self.expect
        like = gradients.values | {name: x for name, (_, x, _) in gradients.of.items()}
        self.tensors = {name: _output_like(each) for name, each in like.items()} | self.tensors
        self._gradients = gradients

    @functools.cached_property
    def expected(self) -> Expected:
        """What to find in which output."""
        return self._gradients.compute()


def _output_like(values: Any) -> Spec:
    if isinstance(values, list):  # one tensor each
        return [_output_like(each) for each in values]
    return None if values is None else Output(np.shape(values))


CASES: list[Case] = []
random = np.random.default_rng(0)


def case(*row: Any) -> None:
    """Add a row to the table: see `Case`."""
    CASES.append(Case(*row))


def both_ways(
    label: str, name: str, function: Callable[..., Any], x: np.ndarray, settings: dict[str, Any],
    draw: Callable[..., np.ndarray] | None = None, **others: Spec,
) -> None:  # fmt: skip
    """Add the cases of a primitive y = function(x), and of its backward pass.

    draw: makes dy. others: tensors that both read.
    """
    y = function(x)
    dy = (draw or normal)(*y.shape)
    case(label, name, {"x": x} | others, settings, {"y": y})
    case(label, f"{name}_backward", {"dy": dy} | others, settings, Gradients(dx=(function, x, dy)))


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
