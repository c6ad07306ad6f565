"""Owns the NumPy primitives that pick elements by their place: gather, positions, top_k."""

from __future__ import annotations

import math

import numpy as np

from ...primitives.losses import TopK
from ...primitives.movement import Gather, GatherBackward, GatherGradient, Positions
from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive, unprepared
from .normalization import planes


def _rows(tensor: Tensor, axes: int) -> np.ndarray:
    """The tensor with its first axes as one, and the others as one."""
    shape = tensor.shape
    rows: np.ndarray = tensor.array.reshape(math.prod(shape[:axes]), math.prod(shape[axes:]))
    return rows


@primitive()
def gather(call: CpuCall, a: Gather) -> Step:
    rows, wrong = (
        call.temporary((a.index.count,), "int64"),
        call.temporary((a.index.count,), "bool"),
    )

    def step() -> None:
        source, out = _rows(a.x, 1), _rows(a.y, len(a.index.shape))
        np.copyto(rows.array, a.index.array.reshape(-1), casting="unsafe")
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
def gather_backward(call: CpuCall, a: GatherBackward) -> Step:
    return _scatter(a.dy, a.index, a.dx)


@primitive()
def gather_gradient(call: CpuCall, a: GatherGradient) -> Step:
    return _scatter(a.dy, a.index, a.dw)


@primitive()
@unprepared
def positions(call: CpuCall, a: Positions) -> None:
    flat = a.y.array.reshape(-1)
    flat.fill(1)
    flat[:1] = 0
    np.cumsum(flat, out=flat)


@primitive()
def top_k(call: CpuCall, a: TopK) -> Step:
    length = a.length

    def step() -> None:
        scores = planes(a.x, a.axis)
        # Backwards, a stable sort leaves the later of equal elements first. NumPy allocates its
        # result: no layer that trains calls this.
        order = np.argsort(scores, axis=1, kind="stable")[:, : -length - 1 : -1]
        if a.index is not None:
            np.copyto(planes(a.index, a.axis), order, casting="unsafe")
        if a.value is not None:
            np.copyto(planes(a.value, a.axis), np.take_along_axis(scores, order, axis=1))

    return step
