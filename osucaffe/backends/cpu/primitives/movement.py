"""Owns the NumPy primitives that move data: fill, copy, concat, split, permute, crop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive


@primitive(agnostic=lambda settings: settings["value"] == 0)
def fill(call: CpuCall, y: Tensor, *, value: float) -> Step:
    def step() -> None:
        y.array.fill(value)

    return step


@primitive(agnostic=True)
def copy(call: CpuCall, x: Tensor, y: Tensor) -> Step:
    def step() -> None:
        np.copyto(y.array, x.array, casting="unsafe")

    return step


def _parts(tensors: list[Tensor | None], whole: Tensor, axis: int) -> list[tuple[slice, ...]]:
    """Where each of the tensors lies in the whole, along axis; a None takes what is left."""
    known = sum(tensor.shape[axis] for tensor in tensors if tensor is not None)
    missing = sum(tensor is None for tensor in tensors)
    left = (whole.shape[axis] - known) // missing if missing else 0
    parts, start = [], 0
    for tensor in tensors:
        stop = start + (left if tensor is None else tensor.shape[axis])
        parts.append((slice(None),) * axis + (slice(start, stop),))
        start = stop
    return parts


@primitive()
def concat(call: CpuCall, xs: list[Tensor], y: Tensor, *, axis: int) -> Step:
    axis %= len(y.shape)
    parts = _parts(list(xs), y, axis)

    def step() -> None:
        for x, part in zip(xs, parts, strict=True):
            np.copyto(y.array[part], x.array)

    return step


@primitive()
def split(call: CpuCall, x: Tensor, ys: list[Tensor | None], *, axis: int) -> Step:
    axis %= len(x.shape)
    parts = _parts(ys, x, axis)

    def step() -> None:
        for y, part in zip(ys, parts, strict=True):
            if y is not None:
                np.copyto(y.array, x.array[part])

    return step


@primitive()
def permute(call: CpuCall, x: Tensor, y: Tensor, *, axes: Sequence[int]) -> Step:
    def step() -> None:
        np.copyto(y.array, x.array.transpose(axes))

    return step


def _box(offsets: Sequence[int], tensor: Tensor) -> tuple[slice, ...]:
    """The box that begins at offsets and has the tensor's extents."""
    pairs = zip(offsets, tensor.shape, strict=True)
    return tuple(slice(offset, offset + extent) for offset, extent in pairs)


@primitive()
def crop(call: CpuCall, x: Tensor, y: Tensor, *, offsets: Sequence[int]) -> Step:
    box = _box(offsets, y)

    def step() -> None:
        np.copyto(y.array, x.array[box])

    return step


@primitive()
def crop_backward(call: CpuCall, dy: Tensor, dx: Tensor, *, offsets: Sequence[int]) -> Step:
    box = _box(offsets, dy)

    def step() -> None:
        dx.array.fill(0)
        np.copyto(dx.array[box], dy.array)

    return step
