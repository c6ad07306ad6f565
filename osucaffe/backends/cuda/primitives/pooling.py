"""Owns pooling: fast kernels for images with the channels last, general ones for all else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...primitives.pooling import (
    AveragePooling,
    AveragePoolingBackward,
    MaxPooling,
    MaxPoolingBackward,
    PoolingWindow,
    StochasticPooling,
)
from ...tensor import Step, Tensor
from ..layout import C_TYPES, ITEM_BYTES, Layout, dtype_of, is_nhwc
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch
from .windows import Windows


def _is_open(tensor: Tensor) -> bool:
    return tensor.flexible and tensor.like is None


def _images(call: CudaCall, large: Tensor, small: Tensor) -> bool:
    """Whether the fast kernels serve: two spatial axes, channels last in memory somewhere."""
    call.choose_layouts(large, small)
    return len(large.shape) == 4 and any(
        is_nhwc(tensor) and tensor.layout is not None for tensor in (large, small)
    )


def _fast(
    a: PoolingWindow,
    large: Tensor,
    small: Tensor,
    arguments: Sequence[Any],
    *,
    over: Tensor,
    relu: bool = False,
) -> Step:
    """A step that launches the primitive's kernel of pooling.cu over the elements of `over`."""
    _, c, h, w = large.shape
    window = (a.kernel, a.stride, a.pad)
    dtype = dtype_of(over)
    vector = math.gcd(c, 16 // ITEM_BYTES[dtype])
    names = ("C", "H", "W", "OH", "OW", "KH", "KW", "SH", "SW", "PH", "PW")
    values = (c, h, w, *small.shape[2:], *(value for pair in window for value in pair))
    macros = dict(zip(names, map(int, values), strict=True))
    function = kernel("pooling", a.name, T=C_TYPES[dtype], VEC=vector, RELU=int(relu), **macros)
    count = over.size // vector
    return launch(function, blocks_for(count), [*arguments, np.int64(count)])


@primitive("own")
def max_pooling(call: CudaCall, a: MaxPooling) -> Step:
    images = _images(call, a.x, a.y)
    if a.index is not None and _is_open(a.index):
        # Its place inside the window is all that the backward pass needs to know of a maximum.
        small = images and math.prod(a.kernel) < 255
        a.index.layout = Layout(a.index.shape, "uint8" if small else "int32", images)
    if images and (a.index is None or dtype_of(a.index) == "uint8"):
        x = call.in_layout(a.x, nhwc=True, dtype=dtype_of(a.y))
        y = call.in_layout(a.y, nhwc=True)
        return _fast(a, x, y, [x, y, a.index], over=y, relu=a.behind_relu)
    windows = Windows(call, a.x, a.y, a)
    return windows.over_small("max_pooling", a.index, np.int32(a.behind_relu))


@primitive("own")
def max_pooling_backward(call: CudaCall, a: MaxPoolingBackward) -> Step:
    call.choose_layouts(a.dx, a.dy, a.index)
    if dtype_of(a.index) == "uint8":
        dx = call.in_layout(a.dx, nhwc=True)
        dy = call.in_layout(a.dy, nhwc=True, dtype=dtype_of(dx))
        return _fast(a, dx, dy, [dy, a.index, dx], over=dx)
    return Windows(call, a.dx, a.dy, a).over_large("max_pooling_backward", a.index)


@primitive("own")
def average_pooling(call: CudaCall, a: AveragePooling) -> Step:
    if _images(call, a.x, a.y):
        y = call.in_layout(a.y, nhwc=True)
        x = call.in_layout(a.x, nhwc=True, dtype=dtype_of(y))
        return _fast(a, x, y, [x, y], over=y)
    return Windows(call, a.x, a.y, a).over_small("average_pooling")


@primitive("own")
def average_pooling_backward(call: CudaCall, a: AveragePoolingBackward) -> Step:
    mask = a.relu_output
    if _images(call, a.dx, a.dy):
        dx = call.in_layout(a.dx, nhwc=True)
        dy = call.in_layout(a.dy, nhwc=True, dtype=dtype_of(dx))
        if mask is not None:
            mask = call.in_layout(mask, nhwc=True, dtype=dtype_of(dx))
        return _fast(a, dx, dy, [dy, mask, dx], over=dx)
    return Windows(call, a.dx, a.dy, a).over_large("average_pooling_backward", mask)


@primitive("own")
def stochastic_pooling(call: CudaCall, a: StochasticPooling) -> Step:
    call.choose_layouts(a.x, a.y)
    if _is_open(a.index):
        a.index.layout = Layout(a.index.shape, "int32", False)
    windows = Windows(call, a.x, a.y, a)
    if not a.train:
        return windows.over_small("expected_pooling")
    drawn = [call.backend.counter(), np.uint64(call.backend.key(a.key))]
    return windows.over_small("stochastic_pooling", a.index, *drawn)
