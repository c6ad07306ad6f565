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
    """The ways to correlate x with w that every GPU has, and those by warpgroups.

    The tensors are those of `Small.correlate`. flipped: w is the filter of the convolution that
    this is `turned` from.
    """
    tensors = {"x": x, "w": w, "b": b, "positive": positive, "y": y}
    masked = "masked " if positive is not None else ""

    def maker(correlation: Callable[..., Step], division: Division) -> Maker:
        return lambda _, t: correlation(division, **t, slope=slope)

    by_warpgroups = functools.partial(correlate, small)
    general, special = small.correlations(flipped=flipped), divisions(small, flipped=flipped)
    own = {f"{masked}{each}": maker(small.correlate, each) for each in general}
    ways = _measured(call, small, tensors, own)
    own = {f"warpgroups {masked}{each}": maker(by_warpgroups, each) for each in special}
    return ways + _measured(call, small, tensors, own)


def small_gradients(
    call: CudaCall, small: Small, x: Tensor, dy: Tensor, dw: Tensor, db: Tensor | None
) -> list[Way]:
    """The ways to compute gradients of filters and biases."""

    def maker(division: Division) -> Maker:
        return lambda call, t: small.gradients(division, call, **t)

    own = {f"{division}": maker(division) for division in small.summations}
    return _measured(call, small, {"x": x, "dy": dy, "dw": dw, "db": db}, own)


def _measured(
    call: CudaCall, small: Small, tensors: dict[str, Tensor | None], makers: dict[str, Maker]
) -> list[Way]:
    """Ways that are timed. makers: by what tells them apart for this convolution."""
    x = tensors["x"]
    assert x is not None
    lies = f"{dtype_of(x)} {strides(x)}"
    return measured(
        call, tensors, {f"{small} {lies} {what}": maker for what, maker in makers.items()}
    )
