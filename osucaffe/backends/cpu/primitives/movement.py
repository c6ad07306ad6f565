"""Owns the NumPy primitives that move data, or pick elements by their place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...primitives import movement as ops
from ...tensor import Step, Tensor
from ..registry import CpuCall, direct, primitive
from .formulas import matrix, planes


@direct(agnostic=lambda settings: settings["value"] == 0)
def fill(call: CpuCall, a: ops.Fill) -> None:
    a.y.array.fill(a.value)


@direct(agnostic=True)
def copy(call: CpuCall, a: ops.Copy) -> None:
    np.copyto(a.y.array, a.x.array, casting="unsafe")


def _box(part: Tensor, offsets: Mapping[int, int]) -> tuple[slice, ...]:
    """The box of the part's extents that begins at these offsets, by axis, else at 0."""
    starts = [offsets.get(axis, 0) for axis in range(len(part.shape))]
    return tuple(slice(at, at + extent) for at, extent in zip(starts, part.shape, strict=True))


@primitive()
def concat(call: CpuCall, a: ops.Concat) -> Step:
    boxes = [_box(x, {a.axis: start}) for x, start in zip(a.xs, a.starts, strict=True)]

    def step() -> None:
        for x, box in zip(a.xs, boxes, strict=True):
            np.copyto(a.y.array[box], x.array)

    return step


@primitive()
def split(call: CpuCall, a: ops.Split) -> Step:
    boxes = [
        (y, _box(y, {a.axis: at})) for y, at in zip(a.ys, a.starts, strict=True) if y is not None
    ]

    def step() -> None:
        for y, box in boxes:
            np.copyto(y.array, a.x.array[box])

    return step


@direct()
def permute(call: CpuCall, a: ops.Permute) -> None:
    np.copyto(a.y.array, a.x.array.transpose(a.axes))


@primitive()
def crop(call: CpuCall, a: ops.Crop) -> Step:
    box = _box(a.y, dict(enumerate(a.offsets)))

    def step() -> None:
        np.copyto(a.y.array, a.x.array[box])

    return step


@primitive()
def crop_backward(call: CpuCall, a: ops.CropBackward) -> Step:
    box = _box(a.dy, dict(enumerate(a.offsets)))

    def step() -> None:
        a.dx.array.fill(0)
        np.copyto(a.dx.array[box], a.dy.array)

    return step


@primitive()
def gather(call: CpuCall, a: ops.Gather) -> Step:
    rows, wrong = (
        call.temporary((a.index.count,), "int64"),
        call.temporary((a.index.count,), "bool"),
    )

    def step() -> None:
        source, out = matrix(a.x, 1), matrix(a.y, len(a.index.shape))
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
        out = matrix(target, 1)
        for row, gradient in zip(index.array.flat, matrix(dy, len(index.shape)), strict=True):
            if 0 <= row < len(out):
                out[int(row)] += gradient

    return step


@primitive()
def gather_backward(call: CpuCall, a: ops.GatherBackward) -> Step:
    return _scatter(a.dy, a.index, a.dx)


@primitive()
def gather_gradient(call: CpuCall, a: ops.GatherGradient) -> Step:
    return _scatter(a.dy, a.index, a.dw)


@direct()
def positions(call: CpuCall, a: ops.Positions) -> None:
    flat = a.y.array.reshape(-1)
    flat.fill(1)
    flat[:1] = 0
    np.cumsum(flat, out=flat)


@primitive()
def top_k(call: CpuCall, a: ops.TopK) -> Step:
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
