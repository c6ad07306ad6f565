"""Owns pooling: fast kernels for images with the channels last, general ones (and im2col) for all
else, over any number of axes in row-major float32; unpooling and interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...primitives.pooling import (
    AveragePooling,
    AveragePoolingBackward,
    Interpolation,
    InterpolationBackward,
    MaxPooling,
    MaxPoolingBackward,
    PoolingWindow,
    StochasticPooling,
    Unpooling,
    UnpoolingBackward,
)
from ...primitives.products import Im2col, Im2colBackward, Unfolding
from ...tensor import Step, Tensor, sequence
from ..layout import ITEM_BYTES, Layout, dtype_of, is_nhwc, strides
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


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
    vector = math.gcd(c, 16 // ITEM_BYTES[dtype_of(over)])
    names = ("C", "H", "W", "OH", "OW", "KH", "KW", "SH", "SW", "PH", "PW")
    values = (c, h, w, *small.shape[2:], *a.kernel, *a.stride, *a.pad)
    macros = dict(zip(names, map(int, values), strict=True))
    function = kernel("pooling", a.name, T=over, VEC=vector, RELU=relu, **macros)
    count = over.size // vector
    return launch(function, blocks_for(count), [*arguments, count])


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
    return windows.over_small("max_pooling", a.index, a.behind_relu)


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
    drawn = [call.backend.counter(), call.backend.key(a.key)]
    return windows.over_small("stochastic_pooling", a.index, *drawn)


class Windows:
    """Windows over `large` (N, C, *in), one for each position of `small` (N, C, *out)."""

    def __init__(
        self,
        call: CudaCall,
        large: Tensor,
        small: Tensor,
        a: PoolingWindow | StochasticPooling | Unfolding,
    ) -> None:
        call.choose_layouts(large, small)
        self.call = call
        self.large = call.in_layout(large, nhwc=False, dtype="float32")
        self.small = call.in_layout(small, nhwc=False, dtype="float32")
        self.macros = {
            "AXES": len(a.kernel),
            "IN": large.shape[2:],
            "OUT": small.shape[2:],
            "KERNEL": a.kernel,
            "STRIDE": a.stride,
            "PAD": a.pad,
            "DILATION": getattr(a, "dilation", [1] * len(a.kernel)),
            "INS": math.prod(large.shape[2:]),
            "OUTS": math.prod(small.shape[2:]),
            "TAPS": math.prod(a.kernel),
        }

    def over_small(self, name: str, *others: Any) -> Step:
        """A step that launches a kernel with a thread for each element of `small`."""
        return self._launch(name, self.small, others)

    def over_large(self, name: str, *others: Any) -> Step:
        """A step that launches a kernel with a thread for each element of `large`."""
        return self._launch(name, self.large, others)

    def _launch(self, name: str, over: Tensor, others: Sequence[Any]) -> Step:
        # Whatever else there is, such as an index, lies row-major, in the type that it is declared.
        row_major = [
            self.call.in_layout(other, nhwc=False, dtype=other.dtype)
            if isinstance(other, Tensor)
            else other
            for other in others
        ]
        function = kernel("windows", name, COUNT=f"{over.count}ll", **self.macros)
        return launch(function, blocks_for(over.count), [self.large, self.small, *row_major])


@primitive("own")
def im2col(call: CudaCall, a: Im2col) -> Step:
    return Windows(call, a.x, a.y, a).over_small("im2col")


@primitive("own")
def im2col_backward(call: CudaCall, a: Im2colBackward) -> Step:
    return Windows(call, a.dx, a.dy, a).over_large("im2col_backward")


def _planes(small: Tensor, large: Tensor) -> list[int]:
    """The elements of a plane of each."""
    return [math.prod(tensor.shape[2:]) for tensor in (small, large)]


@primitive("plain")
def unpooling(call: CudaCall, a: Unpooling) -> Step:
    owner = call.temporary(a.y.shape, "int32")
    kernels = (
        ("no_owners", a.y.count, [owner, a.y.count]),
        ("find_owners", a.x.count, [a.index, owner, a.x.count, *_planes(a.x, a.y)]),
        ("unpooling", a.y.count, [a.x, owner, a.y, a.y.count, *_planes(a.x, a.y)]),
    )
    return sequence([
        launch(kernel("resampling", name), blocks_for(count), arguments)
        for name, count, arguments in kernels
    ])  # fmt: skip


@primitive("plain")
def unpooling_backward(call: CudaCall, a: UnpoolingBackward) -> Step:
    arguments = [a.dy, a.index, a.dx, a.dx.count, *_planes(a.dx, a.dy)]
    return launch(kernel("resampling", "unpooling_backward"), blocks_for(a.dx.count), arguments)


def _interpolation(
    a: Interpolation | InterpolationBackward, x: Tensor, y: Tensor, over: Tensor, other: Tensor
) -> Step:
    """A step that launches the primitive's kernel, which reads `other`, over the elements of an
    image that it writes; x is the image before, y behind the interpolation."""
    macros: dict[str, Any] = {"X_T": x, "Y_T": y}
    macros |= dict(zip(("C", "H", "W", "OH", "OW"), (*x.shape[1:], *y.shape[2:]), strict=True))
    for letter, tensor in ("X", x), ("Y", y):
        for axis, step in zip("NCHW", strides(tensor), strict=True):
            macros[f"{letter}{axis}"] = f"{step}ll"
    function = kernel("resampling", a.name, CHANNELS_LAST=is_nhwc(over), **macros)
    return launch(function, blocks_for(over.count), [other, over, over.count])


@primitive("own")
def interpolation(call: CudaCall, a: Interpolation) -> Step:
    call.choose_layouts(a.x, a.y)
    return _interpolation(a, a.x, a.y, a.y, a.x)


@primitive("own")
def interpolation_backward(call: CudaCall, a: InterpolationBackward) -> Step:
    call.choose_layouts(a.dx, a.dy)
    return _interpolation(a, a.dx, a.dy, a.dx, a.dy)
