"""Owns the NumPy primitives that move data: fill, copy, concat, split."""

from __future__ import annotations

import numpy as np

from ..tensor import Step, Tensor
from .registry import CpuCall, primitive


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
