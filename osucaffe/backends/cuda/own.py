"""Owns which kernels of our own may compute a convolution, and the ways by those for small ones.

large.py and filter_gradient.py have the ways by theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..tensor import Step, Tensor
from .filter_gradient import FilterGradient, filter_gradient
from .folding import Folding, foldings, folds
from .large import Large, large
from .layout import dtype_of, strides
from .registry import CudaCall
from .small import Division, Small
from .warpgroup import correlate, divisions
from .ways import Maker, Problem, Way, measured

if TYPE_CHECKING:
    from .backend import Cuda

# -- large ones: known from shapes alone, so that kernels can be compiled ahead of their turn ------


def _folded_first(backend: Cuda, problem: Problem) -> Folding | None:
    """How images are to be folded for kernels of our own, if they are."""
    return foldings(backend.dtype, problem)[0] if folds(problem) else None


def large_outputs(backend: Cuda, problem: Problem) -> tuple[Large | None, Folding | None]:
    """What may compute the outputs, and how images and filters are to be folded for it."""
    folding = _folded_first(backend, problem)
    return large(backend, problem if folding is None else folding.folded), folding


def large_images(backend: Cuda, problem: Problem, *, masked: bool) -> Large | None:
    """What may compute the gradients of the images. masked: and applies a mask to them."""
    found = large(backend, problem)
    return found and found.gradient(masked=masked)


def large_gradient(backend: Cuda, problem: Problem) -> tuple[FilterGradient | None, Folding | None]:
    """What may compute the gradients of the filters, and how images are to be folded for it."""
    folding = _folded_first(backend, problem)
    return filter_gradient(backend, problem if folding is None else folding.folded), folding


# -- small ones ------------------------------------------------------------------------------------


def correlation_trials(
    small: Small, x: Tensor, *, masked: bool, flipped: bool
) -> dict[str, Callable[..., Step]]:
    """What makes a step for each division to be timed, given the tensors of `Small.correlate` and
    the slope, by a text that says all that its time depends on.

    x: lies as the images will. masked: with the tensor `positive`. flipped: the filters are those
    of the convolution that this is `turned` from.
    """
    masks = "masked " if masked else ""
    start = _described(small, x)
    by_warpgroups = functools.partial(correlate, small)
    trials: dict[str, Callable[..., Step]] = {}
    for each in small.correlations(flipped=flipped):
        trials[f"{start} {masks}{each}"] = functools.partial(small.correlate, each)
    for each in divisions(small, flipped=flipped):
        trials[f"{start} warpgroups {masks}{each}"] = functools.partial(by_warpgroups, each)
    return trials


def gradient_trials(small: Small, x: Tensor) -> dict[str, Division]:
    """The divisions to be timed for the gradients of filters and biases, by such texts."""
    return {f"{_described(small, x)} {division}": division for division in small.summations}


def _described(small: Small, x: Tensor) -> str:
    return f"{small} {dtype_of(x)} {strides(x)}"


def small_correlations(
    call: CudaCall,
    small: Small,
    x: Tensor,
    w: Tensor,
    y: Tensor,
    *,
    b: Tensor | None = None,
    positive: Tensor | None = None,
    slope: float = 1.0,
    flipped: bool = False,
) -> list[Way]:
    """The ways to correlate x with w, for which see `correlation_trials`."""

    def maker(correlation: Callable[..., Step]) -> Maker:
        return lambda _, t: correlation(**t, slope=slope)

    tried = correlation_trials(small, x, masked=positive is not None, flipped=flipped)
    tensors = {"x": x, "w": w, "b": b, "positive": positive, "y": y}
    return measured(call, tensors, {what: maker(each) for what, each in tried.items()})


def small_gradients(
    call: CudaCall, small: Small, x: Tensor, dy: Tensor, dw: Tensor, db: Tensor | None
) -> list[Way]:
    """The ways to compute gradients of filters and biases."""

    def maker(division: Division) -> Maker:
        return lambda call, t: small.gradients(division, call, **t)

    tensors = {"x": x, "dy": dy, "dw": dw, "db": db}
    tried = gradient_trials(small, x)
    return measured(call, tensors, {what: maker(each) for what, each in tried.items()})
