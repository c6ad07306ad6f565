"""Owns the inner product by NumPy: matrix products on reshaped views."""

from __future__ import annotations

import math

import numpy as np

from ...primitives.products import (
    InnerProduct,
    InnerProductBackwardData,
    InnerProductBackwardFilter,
)
from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive, unprepared
from .elementwise import formula, relu_formula


def _matrix(tensor: Tensor, axis: int) -> np.ndarray:
    """The tensor with the axes before `axis` as rows and the others as columns."""
    rows, columns = math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:])
    matrix: np.ndarray = tensor.array.reshape(rows, columns)
    return matrix


@primitive()
def inner_product(call: CpuCall, a: InnerProduct) -> Step:
    activate = None if a.relu is None else formula(call, relu_formula(a.relu), {"x": a.y, "y": a.y})

    def step() -> None:
        weights, out = _matrix(a.w, 1), _matrix(a.y, a.axis)
        np.matmul(_matrix(a.x, a.axis), weights if a.transpose else weights.T, out=out)
        if a.b is not None:
            np.add(out, a.b.array.reshape(-1), out=out)
        if activate is not None:
            activate()

    return step


@primitive()
@unprepared
def inner_product_backward_data(call: CpuCall, a: InnerProductBackwardData) -> None:
    weights = _matrix(a.w, 1)
    np.matmul(
        _matrix(a.dy, a.axis), weights.T if a.transpose else weights, out=_matrix(a.dx, a.axis)
    )


@primitive()
@unprepared
def inner_product_backward_filter(call: CpuCall, a: InnerProductBackwardFilter) -> None:
    inputs, gradients = _matrix(a.x, a.axis), _matrix(a.dy, a.axis)
    if a.dw is not None:
        left, right = (inputs, gradients) if a.transpose else (gradients, inputs)
        np.matmul(left.T, right, out=_matrix(a.dw, 1))
    if a.db is not None:
        np.sum(gradients, axis=0, out=a.db.array.reshape(-1))
