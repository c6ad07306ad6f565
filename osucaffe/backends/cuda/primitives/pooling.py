"""Owns pooling: fast kernels for images with the channels last, general ones for all else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

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
    for tensor in large, small:
        call.backend.choose_layout(tensor)
    return len(large.shape) == 4 and any(
        is_nhwc(tensor) and tensor.layout is not None for tensor in (large, small)
    )


def _fast(
    name: str,
    large: Tensor,
    small: Tensor,
    arguments: Sequence[Any],
    *,
    window: Sequence[Sequence[int]],
    over: Tensor,
    relu: bool = False,
) -> Step:
    """A step that launches a kernel of pooling.cu over the elements of `over`.

    window: kernel, stride, pad.
    """
    _, c, h, w = large.shape
    dtype = dtype_of(over)
    vector = math.gcd(c, 16 // ITEM_BYTES[dtype])
    names = ("C", "H", "W", "OH", "OW", "KH", "KW", "SH", "SW", "PH", "PW")
    values = (c, h, w, *small.shape[2:], *(value for pair in window for value in pair))
    macros = dict(zip(names, map(int, values), strict=True))
    function = kernel("pooling", name, T=C_TYPES[dtype], VEC=vector, RELU=int(relu), **macros)
    count = over.size // vector
    return launch(function, blocks_for(count), [*arguments, np.int64(count)])


@primitive("own")
def max_pooling(
    call: CudaCall,
    x: Tensor,
    y: Tensor,
    index: Tensor | None,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    behind_relu: bool = False,
) -> Step:
    """behind_relu: note maxima only where they are positive (set by the fusion pass)."""
    images = _images(call, x, y)
    if index is not None and _is_open(index):
        # Its place inside the window is all that the backward pass needs to know of a maximum.
        small = images and math.prod(kernel) < 255
        index.layout = Layout(index.shape, "uint8" if small else "int32", images)
    if images and (index is None or dtype_of(index) == "uint8"):
        dtype = dtype_of(y)
        x = call.in_layout(x, nhwc=True, dtype=dtype)
        y = call.in_layout(y, nhwc=True)
        window = (kernel, stride, pad)
        return _fast("max_pooling", x, y, [x, y, index], window=window, over=y, relu=behind_relu)
    windows = Windows(call, x, y, kernel, stride, pad)
    return windows.over_small("max_pooling", index, np.int32(behind_relu))


@primitive("own")
def max_pooling_backward(
    call: CudaCall,
    dy: Tensor,
    index: Tensor,
    dx: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step:
    for tensor in dx, dy, index:
        call.backend.choose_layout(tensor)
    if dtype_of(index) == "uint8":
        dx = call.in_layout(dx, nhwc=True)
        dy = call.in_layout(dy, nhwc=True, dtype=dtype_of(dx))
        window = (kernel, stride, pad)
        return _fast("max_pooling_backward", dx, dy, [dy, index, dx], window=window, over=dx)
    windows = Windows(call, dx, dy, kernel, stride, pad)
    return windows.over_large("max_pooling_backward", index)


@primitive("own")
def average_pooling(
    call: CudaCall,
    x: Tensor,
    y: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
) -> Step:
    if _images(call, x, y):
        y = call.in_layout(y, nhwc=True)
        x = call.in_layout(x, nhwc=True, dtype=dtype_of(y))
        window = (kernel, stride, pad)
        return _fast("average_pooling", x, y, [x, y], window=window, over=y)
    return Windows(call, x, y, kernel, stride, pad).over_small("average_pooling")


@primitive("own")
def average_pooling_backward(
    call: CudaCall,
    dy: Tensor,
    dx: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    relu_output: Tensor | None = None,
) -> Step:
    if _images(call, dx, dy):
        dx = call.in_layout(dx, nhwc=True)
        dy = call.in_layout(dy, nhwc=True, dtype=dtype_of(dx))
        if relu_output is not None:
            relu_output = call.in_layout(relu_output, nhwc=True, dtype=dtype_of(dx))
        window = (kernel, stride, pad)
        return _fast(
            "average_pooling_backward", dx, dy, [dy, relu_output, dx], window=window, over=dx
        )
    windows = Windows(call, dx, dy, kernel, stride, pad)
    return windows.over_large("average_pooling_backward", relu_output)


@primitive("own")
def stochastic_pooling(
    call: CudaCall,
    x: Tensor,
    y: Tensor,
    index: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    key: int,
    train: bool,
) -> Step:
    for tensor in x, y:
        call.backend.choose_layout(tensor)
    if _is_open(index):
        index.layout = Layout(index.shape, "int32", False)
    windows = Windows(call, x, y, kernel, stride, [0] * len(kernel))
    if not train:
        return windows.over_small("expected_pooling")
    drawn = [call.backend.counter(), np.uint64(call.backend.key(key))]
    return windows.over_small("stochastic_pooling", index, *drawn)
