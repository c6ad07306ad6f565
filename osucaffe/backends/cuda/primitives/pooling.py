"""Pooling: fast kernels for images with the channels last, general ones (and im2col) for all
else, over any number of axes in row-major float32; unpooling and interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ... import primitives as ops
from ...tensor import Run, Tensor
from ..layout import ITEM_BYTES, Layout, dtype_of, is_nhwc
from ..registry import Context, primitive
from ..runtime.compile import kernel
from ..runtime.launch import THREADS, blocks_for, launch


def _is_open(tensor: Tensor) -> bool:
    return tensor.flexible and tensor.like is None


def _images(ctx: Context, large: Tensor, small: Tensor) -> bool:
    """Whether the fast kernels serve: two spatial axes, channels last in memory somewhere."""
    ctx.choose_layouts(large, small)
    return len(large.shape) == 4 and any(
        is_nhwc(tensor) and tensor.layout is not None for tensor in (large, small)
    )


Windowed = ops.PoolingWindow | ops.StochasticPooling | ops.Unfolding


MAX_TILED = 5
"""Extent of a window up to which threads have several pixels each."""


_PLAIN = (None,) * 5
"""The last operands where x is not normalized."""


def over_images(
    ctx: Context, a: ops.PoolingWindow, large: Tensor, small: Tensor, *others: Any,
    relu: bool = False, normalized: Sequence[Tensor | None] = _PLAIN,
) -> Run:  # fmt: skip
    """A step that launches the primitive's kernel of pooling.cu over images with the channels last:
    a thread for some channels of each tile of pixels that it writes. normalized: the last operands
    where x is normalized first, an image and four of the channels."""
    backward = a.name.endswith("_backward")
    over = ctx.in_layout(large if backward else small, nhwc=True)
    floats = dtype_of(over)
    large, small, *rest = (
        ctx.in_layout(each, nhwc=True, dtype=floats if each.dtype == "float32" else None)
        if isinstance(each, Tensor)
        else each
        for each in (large, small, *others, normalized[0])
    )
    maximum = not isinstance(a, ops.AveragePooling | ops.AveragePoolingBackward)
    tiled = maximum and max(a.stride) <= 2 and max(a.kernel) <= MAX_TILED
    # What windows share is read once for four pixels; or for two, as windows side by side may share
    # little, and four take many registers, unless a thread has two channels only.
    is_normalized = normalized is not _PLAIN
    few = tiled and not backward and is_normalized
    tile = (2, 2 if backward or few or a.stride[1] == 1 else 1) if tiled else (1, 1)
    vector = math.gcd(over.shape[1], 2 if few else 16 // ITEM_BYTES[floats])
    count = over.shape[0] * over.shape[1] // vector
    macros: dict[str, Any] = {"T": over, "VEC": vector, "C": over.shape[1], "RELU": relu}
    for i, axis in enumerate("HW"):
        # Backward, the first pixel of a tile is the first of a window, if it is not the only one.
        before = a.pad[i] % a.stride[i] if backward and tiled else 0
        tiles = -(-(over.shape[2 + i] + before) // tile[i])
        count *= tiles
        macros |= {
            axis: large.shape[2 + i], f"O{axis}": small.shape[2 + i], f"K{axis}": a.kernel[i],
            f"S{axis}": a.stride[i], f"P{axis}": a.pad[i], f"TILE_{axis}": tile[i],
            f"TILES_{axis}": tiles, f"BEFORE_{axis}": before,
        }  # fmt: skip
    name = "pooling_backward" if backward else "max_pooling" if maximum else "average_pooling"
    note = "uint8_t" if not maximum or others[0] is None else rest[0]
    blocks = 2 if is_normalized and vector > 4 else 3  # at once: so registers are limited
    function = kernel(
        "pooling", name, MAXIMUM=maximum, BACKWARD=backward, NORMALIZED=is_normalized, NOTE=note,
        THREADS=THREADS, BLOCKS=blocks, **macros,
    )  # fmt: skip
    given = [] if name == "average_pooling" else [*rest, *normalized[1:]]
    return launch(function, blocks_for(count), [large, small, *given, count])


def _over_windows(
    ctx: Context, a: Windowed, large: Tensor, small: Tensor, *others: Any, name: str = "",
    relu: bool = False,
) -> Run:  # fmt: skip
    """A step that launches the primitive's kernel of windows.cu, or that of this name, for windows
    over `large` (N, C, *in), one for each position of `small` (N, C, *out): a thread for each
    element that it writes."""
    ctx.choose_layouts(large, small)
    # All lie row-major, in the types that are declared.
    large, small, *rest = (
        ctx.in_layout(each, nhwc=False, dtype=each.dtype) if isinstance(each, Tensor) else each
        for each in (large, small, *others)
    )
    over = large if a.name.endswith("_backward") else small
    function = kernel(
        "windows", name or a.name, AXES=len(a.kernel), IN=large.shape[2:], OUT=small.shape[2:],
        KERNEL=a.kernel, STRIDE=a.stride, PAD=a.pad, RELU=relu,
        DILATION=getattr(a, "dilation", [1] * len(a.kernel)), INS=math.prod(large.shape[2:]),
        OUTS=math.prod(small.shape[2:]), TAPS=math.prod(a.kernel), COUNT=f"{over.count}ll",
    )  # fmt: skip
    return launch(function, blocks_for(over.count), [large, small, *rest])


@primitive("own")
def max_pooling(ctx: Context, a: ops.MaxPooling) -> Run:
    images = _images(ctx, a.x, a.y)
    if a.index is not None and _is_open(a.index):
        # Its place inside the window is all that the backward pass needs to know of a maximum.
        small = images and math.prod(a.kernel) < 255
        a.index.layout = Layout(a.index.shape, "uint8" if small else "int32", images)
    fast = images and (a.index is None or dtype_of(a.index) == "uint8")
    make = over_images if fast else _over_windows
    return make(ctx, a, a.x, a.y, a.index, relu=a.after_relu)


@primitive("own")
def max_pooling_backward(ctx: Context, a: ops.MaxPoolingBackward) -> Run:
    ctx.choose_layouts(a.dx, a.dy, a.index)
    make = over_images if dtype_of(a.index) == "uint8" else _over_windows
    return make(ctx, a, a.dx, a.dy, a.index, a.addend, a.relu_output)


@primitive("own")
def average_pooling(ctx: Context, a: ops.AveragePooling) -> Run:
    make = over_images if _images(ctx, a.x, a.y) else _over_windows
    return make(ctx, a, a.x, a.y)


@primitive("own")
def average_pooling_backward(ctx: Context, a: ops.AveragePoolingBackward) -> Run:
    make = over_images if _images(ctx, a.dx, a.dy) else _over_windows
    index = [None] if make is over_images else []
    return make(ctx, a, a.dx, a.dy, *index, a.addend, a.relu_output)


@primitive("own")
def stochastic_pooling(ctx: Context, a: ops.StochasticPooling) -> Run:
    if _is_open(a.index):
        a.index.layout = Layout(a.index.shape, "int32", False)
    if not a.train:
        return _over_windows(ctx, a, a.x, a.y, name="expected_pooling")
    drawn = ctx.backend.counter(), ctx.backend.key(a.key)
    return _over_windows(ctx, a, a.x, a.y, a.index, *drawn)


@primitive("own")
def im2col(ctx: Context, a: ops.Im2col) -> Run:
    return _over_windows(ctx, a, a.x, a.y)


@primitive("own")
def im2col_backward(ctx: Context, a: ops.Im2colBackward) -> Run:
    return _over_windows(ctx, a, a.dx, a.dy)
