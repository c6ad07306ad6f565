"""Owns the primitives that look at regions of images, in row-major float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...tensor import Shape, Step, Tensor
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


def _run(
    call: CudaCall,
    name: str,
    tensors: list[Tensor],
    *,
    maps: Shape,
    bins: Shape,
    items: int,
    over: Tensor,
    scale: float,
    pad: float = 0.0,
    warp: bool = False,
    grid: int | None = None,
) -> Step:
    """A step that launches a kernel of regions.cu with a thread for each element of `over`.

    maps: (N, C, H, W); bins: (R, D, BH, BW); items: the images or regions that there are.
    grid: so many blocks.
    """
    names = ("C", "H", "W", "D", "BH", "BW")
    macros: dict[str, Any] = dict(zip(names, (*maps[1:], *bins[1:]), strict=True))
    macros |= {key: f"{float(value)!r}f" for key, value in (("SCALE", scale), ("PAD", pad))}
    macros["WARP"] = int(warp)
    row_major = [call.row_major(tensor) for tensor in tensors]
    counts = [np.int32(items), np.int64(over.count)]
    function = kernel("regions", name, **macros)
    return launch(function, grid or blocks_for(over.count), [*row_major, *counts])


def _forward(
    call: CudaCall, name: str, x: Tensor, rois: Tensor, y: Tensor, *others: Tensor, **numbers: Any
) -> Step:
    tensors = [x, rois, y, *others]
    return _run(
        call, name, tensors, maps=x.shape, bins=y.shape, items=x.shape[0], over=y, **numbers
    )


def _backward(
    call: CudaCall, name: str, dy: Tensor, rois: Tensor, *others: Tensor, **numbers: Any
) -> Step:
    tensors, dx = [dy, rois, *others], others[-1]
    return _run(
        call, name, tensors, maps=dx.shape, bins=dy.shape, items=dy.shape[0], over=dx, **numbers
    )


@primitive("own")
def roi_max_pooling(
    call: CudaCall, x: Tensor, rois: Tensor, y: Tensor, index: Tensor, *, scale: float, pad: float
) -> Step:
    return _forward(call, "roi_max_pooling", x, rois, y, index, scale=scale, pad=pad)


@primitive("own")
def roi_max_pooling_backward(
    call: CudaCall, dy: Tensor, rois: Tensor, index: Tensor, dx: Tensor, *, scale: float, pad: float
) -> Step:
    return _backward(call, "roi_max_pooling_backward", dy, rois, index, dx, scale=scale, pad=pad)


@primitive("own")
def roi_average_pooling(
    call: CudaCall, x: Tensor, rois: Tensor, y: Tensor, *, scale: float
) -> Step:
    return _forward(call, "roi_average_pooling", x, rois, y, scale=scale)


@primitive("own")
def roi_average_pooling_backward(
    call: CudaCall, dy: Tensor, rois: Tensor, dx: Tensor, *, scale: float
) -> Step:
    return _backward(call, "roi_average_pooling_backward", dy, rois, dx, scale=scale)


@primitive("own")
def roi_sampling(
    call: CudaCall,
    x: Tensor,
    rois: Tensor,
    y: Tensor,
    *,
    scale: float,
    pad: float,
    warp: bool = False,
) -> Step:
    return _forward(call, "roi_sampling", x, rois, y, scale=scale, pad=pad, warp=warp)


@primitive("own")
def roi_sampling_backward(
    call: CudaCall,
    dy: Tensor,
    rois: Tensor,
    dx: Tensor,
    *,
    scale: float,
    pad: float,
    warp: bool = False,
) -> Step:
    return _backward(call, "roi_sampling_backward", dy, rois, dx, scale=scale, pad=pad, warp=warp)


@primitive("own")
def roi_warping_rois_backward(
    call: CudaCall, x: Tensor, rois: Tensor, dy: Tensor, drois: Tensor, *, scale: float
) -> Step:
    return _run(
        call, "roi_warping_rois_backward", [x, rois, dy, drois], maps=x.shape, bins=dy.shape,
        items=x.shape[0], over=dy, scale=scale, warp=True, grid=dy.shape[0],
    )  # fmt: skip


@primitive("own")
def hardest(call: CudaCall, rois: Tensor, loss: Tensor, y: Tensor, *, count: int) -> Step:
    rois, loss, y = (call.row_major(tensor) for tensor in (rois, loss, y))
    macros: dict[str, Any] = dict.fromkeys(("C", "H", "W", "D", "BH", "BW", "WARP"), 1)
    macros |= {"SCALE": "1.0f", "PAD": "0.0f"}
    numbers = [np.int32(count), np.int32(math.prod(rois.shape[2:])), np.int64(y.count)]
    function = kernel("regions", "hardest", **macros)
    return launch(function, blocks_for(y.count), [rois, loss, y, *numbers])
