"""The primitives that look at regions of images, in row-major float32."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ...backends.cuda.registry import Context, primitive
from ...backends.cuda.runtime.compile import kernel
from ...backends.cuda.runtime.launch import blocks_for, launch
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Run, Tensor
from . import primitives as ops

REGIONS, OHEM = (Path(__file__).with_name(name) for name in ("regions.cu", "ohem.cu"))


def _launch(
    a: Primitive,
    tensors: list[Tensor],
    x: Tensor,
    y: Tensor,
    *,
    over: Tensor,
    blocks: int | None = None,
    warp: bool = False,
) -> Run:
    """A step that launches the primitive's kernel of regions.cu with a thread for each element of
    `over`. x, y: the images (N, C, H, W) and the bins (R, D, BH, BW), or their gradients."""
    names = ("C", "H", "W", "D", "BH", "BW")
    macros: dict[str, Any] = dict(zip(names, (*x.shape[1:], *y.shape[1:]), strict=True))
    for name in "scale", "pad":
        macros[name.upper()] = float(getattr(a, name, 0))
    function = kernel(REGIONS, a.name, WARP=getattr(a, "warp", warp), **macros)
    items = (y if over is x else x).shape[0]  # what a thread looks through: images or regions
    return launch(function, blocks or blocks_for(over.count), [*tensors, items, over.count])


@primitive("plain")
def roi_max_pooling(ctx: Context, a: ops.RoiMaxPooling) -> Run:
    return _launch(a, [a.x, a.rois, a.y, a.index], a.x, a.y, over=a.y)


@primitive("plain")
def roi_max_pooling_backward(ctx: Context, a: ops.RoiMaxPoolingBackward) -> Run:
    return _launch(a, [a.dy, a.rois, a.index, a.dx], a.dx, a.dy, over=a.dx)


@primitive("plain")
def psroi_pooling(ctx: Context, a: ops.PsroiPooling) -> Run:
    return _launch(a, [a.x, a.rois, a.y], a.x, a.y, over=a.y)


@primitive("plain")
def psroi_pooling_backward(ctx: Context, a: ops.PsroiPoolingBackward) -> Run:
    return _launch(a, [a.dy, a.rois, a.dx], a.dx, a.dy, over=a.dx)


@primitive("plain")
def roi_align(ctx: Context, a: ops.RoiAlign) -> Run:
    return _launch(a, [a.x, a.rois, a.y], a.x, a.y, over=a.y)


@primitive("plain")
def roi_align_backward(ctx: Context, a: ops.RoiAlignBackward) -> Run:
    return _launch(a, [a.dy, a.rois, a.dx], a.dx, a.dy, over=a.dx)


@primitive("plain")
def roi_warping_rois_backward(ctx: Context, a: ops.RoiWarpingRoisBackward) -> Run:
    tensors, regions = [a.x, a.rois, a.dy, a.drois], a.dy.shape[0]
    return _launch(a, tensors, a.x, a.dy, over=a.dy, blocks=regions, warp=True)


@primitive("plain")
def ohem_select(ctx: Context, a: ops.OhemSelect) -> Run:
    arguments = [a.rois, a.loss, a.y, a.count, math.prod(a.rois.shape[2:]), a.y.count]
    return launch(kernel(OHEM, a.name), blocks_for(a.y.count), arguments)
