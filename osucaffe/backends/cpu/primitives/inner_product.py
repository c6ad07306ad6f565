"""Owns the inner product by NumPy: matrix products on reshaped views."""

from __future__ import annotations

import math

import numpy as np

from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive
from .elementwise import formula, relu_formula


def _matrix(tensor: Tensor, axis: int) -> np.ndarray:
    """The tensor with the axes before `axis` as rows and the others as columns."""
    axis %= len(tensor.shape)
    rows, columns = math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:])
    matrix: np.ndarray = tensor.array.reshape(rows, columns)
    return matrix


@primitive()
def inner_product(
    call: CpuCall,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    *,
    axis: int,
    transpose: bool,
    relu: float | None = None,
) -> Step:
    activate = None if relu is None else formula(call, relu_formula(relu), {"x": y, "y": y})

    def step() -> None:
        weights, out = _matrix(w, 1), _matrix(y, axis)
        np.matmul(_matrix(x, axis), weights if transpose else weights.T, out=out)
        if b is not None:
            np.add(out, b.array.reshape(-1), out=out)
        if activate is not None:
            activate()

    return step


@primitive()
def inner_product_backward_data(
    call: CpuCall, dy: Tensor, w: Tensor, dx: Tensor, *, axis: int, transpose: bool
) -> Step:
    def step() -> None:
        weights = _matrix(w, 1)
        np.matmul(_matrix(dy, axis), weights.T if transpose else weights, out=_matrix(dx, axis))

    return step


@primitive()
def inner_product_backward_filter(
    call: CpuCall,
    x: Tensor,
    dy: Tensor,
    dw: Tensor | None,
    db: Tensor | None,
    *,
    axis: int,
    transpose: bool,
) -> Step:
    def step() -> None:
        inputs, gradients = _matrix(x, axis), _matrix(dy, axis)
        if dw is not None:
            left, right = (inputs, gradients) if transpose else (gradients, inputs)
            np.matmul(left.T, right, out=_matrix(dw, 1))
        if db is not None:
            np.sum(gradients, axis=0, out=db.array.reshape(-1))

    return step
