"""Owns the NumPy primitives that move data: fill, copy, concat, split, permute, crop."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...primitives.movement import Concat, Copy, Crop, CropBackward, Fill, Permute, Split
from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive, unprepared


@primitive(agnostic=lambda settings: settings["value"] == 0)
@unprepared
def fill(call: CpuCall, a: Fill) -> None:
    a.y.array.fill(a.value)


@primitive(agnostic=True)
@unprepared
def copy(call: CpuCall, a: Copy) -> None:
    np.copyto(a.y.array, a.x.array, casting="unsafe")


def _box(part: Tensor, offsets: Mapping[int, int]) -> tuple[slice, ...]:
    """The box of the part's extents that begins at these offsets, by axis, else at 0."""
    starts = [offsets.get(axis, 0) for axis in range(len(part.shape))]
    return tuple(slice(at, at + extent) for at, extent in zip(starts, part.shape, strict=True))


@primitive()
def concat(call: CpuCall, a: Concat) -> Step:
    boxes = [_box(x, {a.axis: start}) for x, start in zip(a.xs, a.starts, strict=True)]

    def step() -> None:
        for x, box in zip(a.xs, boxes, strict=True):
            np.copyto(a.y.array[box], x.array)

    return step


@primitive()
def split(call: CpuCall, a: Split) -> Step:
    boxes = [
        (y, _box(y, {a.axis: at})) for y, at in zip(a.ys, a.starts, strict=True) if y is not None
    ]

    def step() -> None:
        for y, box in boxes:
            np.copyto(y.array, a.x.array[box])

    return step


@primitive()
@unprepared
def permute(call: CpuCall, a: Permute) -> None:
    np.copyto(a.y.array, a.x.array.transpose(a.axes))


@primitive()
def crop(call: CpuCall, a: Crop) -> Step:
    box = _box(a.y, dict(enumerate(a.offsets)))

    def step() -> None:
        np.copyto(a.y.array, a.x.array[box])

    return step


@primitive()
def crop_backward(call: CpuCall, a: CropBackward) -> Step:
    box = _box(a.dy, dict(enumerate(a.offsets)))

    def step() -> None:
        a.dx.array.fill(0)
        np.copyto(a.dx.array[box], a.dy.array)

    return step
