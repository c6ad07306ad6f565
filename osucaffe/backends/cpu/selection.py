"""Owns the NumPy primitives that pick or move elements: permute, crop, gather, top_k, im2col."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..tensor import Step, Tensor
from .registry import CpuCall, primitive
from .windows import Windows


@primitive()
def permute(call: CpuCall, x: Tensor, y: Tensor, *, axes: Sequence[int]) -> Step:
    def step() -> None:
        np.copyto(y.array, x.array.transpose(axes))

    return step


def _box(offsets: Sequence[int], small: Tensor) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(offsets, small.shape, strict=True))


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


@primitive()
def gather(call: CpuCall, x: Tensor, index: Tensor, y: Tensor) -> Step:
    place = call.temporary((index.count,), "int64")
    wrong, above = [call.temporary((index.count,), "bool") for _ in range(2)]

    def step() -> None:
        np.copyto(place.array, index.array.reshape(-1), casting="unsafe")
        np.less(place.array, 0, out=wrong.array)
        np.greater_equal(place.array, len(x.array), out=above.array)
        np.logical_or(wrong.array, above.array, out=wrong.array)
        rows = y.array.reshape(index.count, *x.shape[1:])
        np.take(x.array, place.array, axis=0, out=rows, mode="clip")
        if wrong.array.any():
            rows[wrong.array] = np.nan

    return step


@primitive()
def gather_backward(call: CpuCall, dy: Tensor, index: Tensor, dx: Tensor) -> Step:
    place = call.temporary((index.count,), "int64")
    inside, below = [call.temporary((index.count,), "bool") for _ in range(2)]

    def step() -> None:
        np.copyto(place.array, index.array.reshape(-1), casting="unsafe")
        np.greater_equal(place.array, 0, out=inside.array)
        np.less(place.array, len(dx.array), out=below.array)
        np.logical_and(inside.array, below.array, out=inside.array)
        rows = dy.array.reshape(index.count, *dx.shape[1:])
        dx.array.fill(0)
        if inside.array.all():
            np.add.at(dx.array, place.array, rows)
        else:
            np.add.at(dx.array, place.array[inside.array], rows[inside.array])

    return step


@primitive()
def gather_gradient(call: CpuCall, dy: Tensor, index: Tensor, dw: Tensor) -> Step:
    return gather_backward(call, dy, index, dw)


@primitive()
def positions(call: CpuCall, y: Tensor) -> Step:
    def step() -> None:
        y.array.reshape(-1)[:] = np.arange(y.count)

    return step


@primitive()
def top_k(
    call: CpuCall, x: Tensor, index: Tensor | None, value: Tensor | None, *, axis: int
) -> Step:
    wanted = next(each.shape[axis] for each in (index, value) if each is not None)

    def step() -> None:
        # The last of an ascending stable order are the largest, of equal ones the later.
        order = np.argsort(x.array, axis=axis, kind="stable")
        order = np.flip(order, axis).take(range(wanted), axis=axis)
        if index is not None:
            np.copyto(index.array, order, casting="unsafe")
        if value is not None:
            np.copyto(value.array, np.take_along_axis(x.array, order, axis))

    return step


@primitive()
def im2col(
    call: CpuCall,
    x: Tensor,
    y: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> Step:
    windows = Windows(x.shape[2:], y.shape[2:], kernel, stride, pad, dilation)
    padded = call.temporary((x.shape[1], *windows.padded))

    def step() -> None:
        padded.array.fill(0)
        for image, columns in zip(x.array, y.array, strict=True):
            np.copyto(padded.array[windows.interior], image)
            unfolded = windows.unfold(padded.array)
            np.copyto(columns.reshape(unfolded.shape), unfolded)

    return step


@primitive()
def im2col_backward(
    call: CpuCall,
    dy: Tensor,
    dx: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> Step:
    windows = Windows(dx.shape[2:], dy.shape[2:], kernel, stride, pad, dilation)
    padded = call.temporary((dx.shape[1], *windows.padded))

    def step() -> None:
        for columns, image in zip(dy.array, dx.array, strict=True):
            padded.array.fill(0)
            pieces = columns.reshape(len(image), windows.area, *windows.out)
            for tap, place in enumerate(windows.taps):
                padded.array[place] += pieces[:, tap]
            np.copyto(image, padded.array[windows.interior])

    return step
