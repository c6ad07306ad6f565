"""Owns unpooling and interpolation by NumPy."""

from __future__ import annotations

import math

import numpy as np

from ...primitives.pooling import Interpolation, InterpolationBackward, Unpooling, UnpoolingBackward
from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive


class _Places:
    """Where the elements of x stand in y, flat, in reused memory. Call `look` first in a step."""

    def __init__(self, call: CpuCall, index: Tensor, y: Tensor) -> None:
        self.index, self.area = index, math.prod(y.shape[2:])
        self.place = call.temporary((y.shape[0] * y.shape[1], math.prod(index.shape[2:])), "int64")
        self._first = np.arange(y.shape[0] * y.shape[1])[:, None] * self.area
        self._flag = call.temporary(self.place.shape, "bool")
        self.wrong = call.temporary(self.place.shape, "bool")

    def look(self) -> None:
        """Read the indices: `place`, and `wrong` where one is out of range (its place is the first
        of its channel)."""
        place, wrong, flag = self.place.array, self.wrong.array, self._flag.array
        np.copyto(place, self.index.array.reshape(place.shape), casting="unsafe")
        np.less(place, 0, out=wrong)
        np.greater_equal(place, self.area, out=flag)
        np.logical_or(wrong, flag, out=wrong)
        np.putmask(place, wrong, 0)
        np.add(place, self._first, out=place)


@primitive()
def unpooling(call: CpuCall, a: Unpooling) -> Step:
    places = _Places(call, a.index, a.y)

    def step() -> None:
        places.look()
        flat = a.y.array.reshape(-1)
        flat.fill(0)
        np.put(flat, places.place.array, a.x.array)
        np.putmask(a.y.array.reshape(-1, places.area)[:, 0], places.wrong.array.any(axis=1), np.nan)

    return step


@primitive()
def unpooling_backward(call: CpuCall, a: UnpoolingBackward) -> Step:
    places = _Places(call, a.index, a.dy)

    def step() -> None:
        places.look()
        taken = a.dx.array.reshape(places.place.shape)
        # mode "clip" keeps NumPy from making a copy first
        np.take(a.dy.array.reshape(-1), places.place.array, out=taken, mode="clip")
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


def _product(call: CpuCall, x: Tensor, y: Tensor, rows: np.ndarray, columns: np.ndarray) -> Step:
    """y = rows x columns^T for each channel, through whichever is smaller between them."""
    first = rows.shape[0] * x.shape[3] <= x.shape[2] * columns.shape[0]
    between = (rows.shape[0], x.shape[3]) if first else (x.shape[2], columns.shape[0])
    half = call.temporary((*x.shape[:2], *between))
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
def interpolation(call: CpuCall, a: Interpolation) -> Step:
    dtype = call.backend.dtype_of(a.x)
    axes = zip(a.y.shape[2:], a.x.shape[2:], strict=True)
    return _product(call, a.x, a.y, *(weights(large, small, dtype) for large, small in axes))


@primitive()
def interpolation_backward(call: CpuCall, a: InterpolationBackward) -> Step:
    dtype = call.backend.dtype_of(a.dx)
    axes = zip(a.dy.shape[2:], a.dx.shape[2:], strict=True)
    matrices = (weights(large, small, dtype).T for large, small in axes)
    return _product(call, a.dy, a.dx, *map(np.ascontiguousarray, matrices))
