"""The NumPy primitives that put pixels where they were, or between others."""

from __future__ import annotations

import math

import numpy as np

from ...backends.cpu.primitives.movement import Indices
from ...backends.cpu.registry import Context, primitive
from ...backends.tensor import Run, Tensor
from . import primitives as ops


class _Places(Indices):
    """Where the elements of x stand in y, flat: the first of its channel for one out of range."""

    def __init__(self, ctx: Context, index: Tensor, y: Tensor) -> None:
        channels, self.area = y.shape[0] * y.shape[1], math.prod(y.shape[2:])
        super().__init__(ctx, index, (channels, math.prod(index.shape[2:])), self.area)
        self._first = np.arange(channels)[:, None] * self.area

    def look(self) -> None:
        super().look()
        place = self.values.array
        np.putmask(place, self.wrong.array, 0)
        np.add(place, self._first, out=place)


@primitive()
def unpooling(ctx: Context, a: ops.Unpooling) -> Run:
    places = _Places(ctx, a.index, a.y)

    def step() -> None:
        places.look()
        flat = a.y.array.reshape(-1)
        flat.fill(0)
        np.put(flat, places.values.array, a.x.array)
        np.putmask(flat.reshape(-1, places.area)[:, 0], places.wrong.array.any(axis=1), np.nan)

    return step


@primitive()
def unpooling_backward(ctx: Context, a: ops.UnpoolingBackward) -> Run:
    places = _Places(ctx, a.index, a.dy)

    def step() -> None:
        places.look()
        taken = a.dx.array.reshape(places.values.array.shape)
        # mode "clip" keeps NumPy from making a copy first
        np.take(a.dy.array.reshape(-1), places.values.array, out=taken, mode="clip")
        np.putmask(taken, places.wrong.array, 0)

    return step


def weights(large: int, small: int, dtype: np.dtype) -> np.ndarray:
    """The matrix (large, small) that interpolates `large` points between `small` ones."""
    matrix = np.zeros((large, small), dtype)
    for row in range(large):
        left, rest = divmod(row * (small - 1), large - 1) if large > 1 else (0, 0)
        part = rest / (large - 1) if large > 1 else 0.0
        matrix[row, left] = 1 - part
        if part:
            matrix[row, left + 1] = part
    return matrix


def _product(ctx: Context, x: Tensor, y: Tensor, rows: np.ndarray, columns: np.ndarray) -> Run:
    """y = rows x columns^T for each channel, through whichever is smaller between them."""
    first = rows.shape[0] * x.shape[3] <= x.shape[2] * columns.shape[0]
    between = (rows.shape[0], x.shape[3]) if first else (x.shape[2], columns.shape[0])
    half = ctx.temporary((*x.shape[:2], *between))
    across = np.ascontiguousarray(columns.T)

    def step() -> None:
        if first:
            np.matmul(rows, x.array, out=half.array)
            np.matmul(half.array, across, out=y.array)
        else:
            np.matmul(x.array, across, out=half.array)
            np.matmul(rows, half.array, out=y.array)

    return step


@primitive()
def resize_bilinear(ctx: Context, a: ops.ResizeBilinear) -> Run:
    dtype = ctx.backend.dtype_of(a.x)
    axes = zip(a.y.shape[2:], a.x.shape[2:], strict=True)
    return _product(ctx, a.x, a.y, *(weights(large, small, dtype) for large, small in axes))


@primitive()
def resize_bilinear_backward(ctx: Context, a: ops.ResizeBilinearBackward) -> Run:
    dtype = ctx.backend.dtype_of(a.dx)
    axes = zip(a.dy.shape[2:], a.dx.shape[2:], strict=True)
    matrices = (weights(large, small, dtype).T for large, small in axes)
    return _product(ctx, a.dy, a.dx, *map(np.ascontiguousarray, matrices))
