"""Owns the NumPy primitives that pick elements by their place: gather, positions, top_k."""

from __future__ import annotations

import math

import numpy as np

from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive
from .normalization import planes


def _rows(tensor: Tensor, axes: int) -> np.ndarray:
    """The tensor with its first axes as one, and the others as one."""
    shape = tensor.shape
    rows: np.ndarray = tensor.array.reshape(math.prod(shape[:axes]), math.prod(shape[axes:]))
    return rows


@primitive()
def gather(call: CpuCall, x: Tensor, index: Tensor, y: Tensor) -> Step:
    rows, wrong = call.temporary((index.count,), "int64"), call.temporary((index.count,), "bool")

    def step() -> None:
        source, out = _rows(x, 1), _rows(y, len(index.shape))
        np.copyto(rows.array, index.array.reshape(-1), casting="unsafe")
        # mode "clip" keeps NumPy from making a copy first
        np.take(source, rows.array, axis=0, out=out, mode="clip")
        np.less(rows.array, 0, out=wrong.array)
        np.copyto(out, np.nan, where=wrong.array[:, None])
        np.greater_equal(rows.array, len(source), out=wrong.array)
        np.copyto(out, np.nan, where=wrong.array[:, None])

    return step


def _scatter(dy: Tensor, index: Tensor, target: Tensor) -> Step:
    def step() -> None:
        target.array.fill(0)
        out = _rows(target, 1)
        for row, gradient in zip(index.array.flat, _rows(dy, len(index.shape)), strict=True):
            if 0 <= row < len(out):
                out[int(row)] += gradient

    return step


@primitive()
def gather_backward(call: CpuCall, dy: Tensor, index: Tensor, dx: Tensor) -> Step:
    return _scatter(dy, index, dx)


@primitive()
def gather_gradient(call: CpuCall, dy: Tensor, index: Tensor, dw: Tensor) -> Step:
    return _scatter(dy, index, dw)


@primitive()
def positions(call: CpuCall, y: Tensor) -> Step:
    def step() -> None:
        flat = y.array.reshape(-1)
        flat.fill(1)
        flat[:1] = 0
        np.cumsum(flat, out=flat)

    return step


@primitive()
def top_k(
    call: CpuCall, x: Tensor, index: Tensor | None, value: Tensor | None, *, axis: int
) -> Step:
    wanted = next(tensor.shape[axis] for tensor in (index, value) if tensor is not None)

    def step() -> None:
        scores = planes(x, axis)
        # Backwards, a stable sort leaves the later of equal elements first. NumPy allocates its
        # result: no layer that trains calls this.
        order = np.argsort(scores, axis=1, kind="stable")[:, : -wanted - 1 : -1]
        if index is not None:
            np.copyto(planes(index, axis), order, casting="unsafe")
        if value is not None:
            np.copyto(planes(value, axis), np.take_along_axis(scores, order, axis=1))

    return step
