"""The GPU primitives that put pixels where they were, or between others: resampling.cu."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ...backends.cuda.layout import is_nhwc, strides
from ...backends.cuda.registry import Context, primitive
from ...backends.cuda.runtime.compile import kernel
from ...backends.cuda.runtime.launch import blocks_for, launch
from ...backends.tensor import Run, Tensor, sequence
from . import primitives as ops

RESAMPLING = Path(__file__).with_name("resampling.cu")


def _planes(small: Tensor, large: Tensor) -> list[int]:
    """The elements of a plane of each."""
    return [math.prod(tensor.shape[2:]) for tensor in (small, large)]


@primitive("plain")
def unpooling(ctx: Context, a: ops.Unpooling) -> Run:
    owner = ctx.temporary(a.y.shape, "int32")
    kernels = (
        ("no_owners", a.y.count, [owner, a.y.count]),
        ("find_owners", a.x.count, [a.index, owner, a.x.count, *_planes(a.x, a.y)]),
        ("unpooling", a.y.count, [a.x, owner, a.y, a.y.count, *_planes(a.x, a.y)]),
    )
    return sequence([
        launch(kernel(RESAMPLING, name), blocks_for(count), arguments)
        for name, count, arguments in kernels
    ])  # fmt: skip


@primitive("plain")
def unpooling_backward(ctx: Context, a: ops.UnpoolingBackward) -> Run:
    arguments = [a.dy, a.index, a.dx, a.dx.count, *_planes(a.dx, a.dy)]
    return launch(kernel(RESAMPLING, "unpooling_backward"), blocks_for(a.dx.count), arguments)


def _resize_bilinear(
    a: ops.ResizeBilinear | ops.ResizeBilinearBackward,
    x: Tensor,
    y: Tensor,
    over: Tensor,
    other: Tensor,
) -> Run:
    """A step that launches the primitive's kernel, which reads `other`, over the elements of an
    image that it writes; x is the image before, y after the interpolation."""
    macros: dict[str, Any] = {"X_T": x, "Y_T": y}
    macros |= dict(zip(("C", "H", "W", "OH", "OW"), (*x.shape[1:], *y.shape[2:]), strict=True))
    for letter, tensor in ("X", x), ("Y", y):
        for axis, step in zip("NCHW", strides(tensor), strict=True):
            macros[f"{letter}{axis}"] = f"{step}ll"
    function = kernel(RESAMPLING, a.name, CHANNELS_LAST=is_nhwc(over), **macros)
    return launch(function, blocks_for(over.count), [other, over, over.count])


@primitive("own")
def resize_bilinear(ctx: Context, a: ops.ResizeBilinear) -> Run:
    ctx.choose_layouts(a.x, a.y)
    return _resize_bilinear(a, a.x, a.y, a.y, a.x)


@primitive("own")
def resize_bilinear_backward(ctx: Context, a: ops.ResizeBilinearBackward) -> Run:
    ctx.choose_layouts(a.dx, a.dy)
    return _resize_bilinear(a, a.dx, a.dy, a.dx, a.dy)
