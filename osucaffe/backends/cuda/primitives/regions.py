"""Owns the primitives that look at regions of images, in row-major float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...primitives.recording import Primitive
from ...primitives.regions import (
    Hardest,
    RoiAveragePooling,
    RoiAveragePoolingBackward,
    RoiMaxPooling,
    RoiMaxPoolingBackward,
    RoiSampling,
    RoiSamplingBackward,
    RoiWarpingRoisBackward,
)
from ...tensor import Shape, Step, Tensor
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch

_Forward = RoiMaxPooling | RoiAveragePooling | RoiSampling
_Backward = RoiMaxPoolingBackward | RoiAveragePoolingBackward | RoiSamplingBackward


def _run(
    a: Primitive,
    tensors: list[Tensor],
    *,
    maps: Shape,
    bins: Shape,
    items: int,
    over: Tensor,
    blocks: int | None = None,
    **settings: float,
) -> Step:
    """A step that launches the primitive's kernel of regions.cu with a thread for each element of
    `over`.

    maps: (N, C, H, W); bins: (R, D, BH, BW); items: the images or regions that there are; blocks:
    of the grid; settings: what the primitive does not say itself.
    """
    names = ("C", "H", "W", "D", "BH", "BW")
    macros: dict[str, Any] = dict(zip(names, (*maps[1:], *bins[1:]), strict=True))
    settings = {"scale": 1.0, "pad": 0.0, "warp": False, **vars(a), **settings}
    macros |= {name.upper(): f"{float(settings[name])!r}f" for name in ("scale", "pad")}
    function = kernel("regions", a.name, WARP=int(settings["warp"]), **macros)
    counts = [np.int32(items), np.int64(over.count)]
    return launch(function, blocks or blocks_for(over.count), [*tensors, *counts])


def _forward(a: _Forward, *others: Tensor) -> Step:
    tensors = [a.x, a.rois, a.y, *others]
    return _run(a, tensors, maps=a.x.shape, bins=a.y.shape, items=a.x.shape[0], over=a.y)


def _backward(a: _Backward, *others: Tensor) -> Step:
    tensors = [a.dy, a.rois, *others, a.dx]
    return _run(a, tensors, maps=a.dx.shape, bins=a.dy.shape, items=a.dy.shape[0], over=a.dx)


@primitive("plain")
def roi_max_pooling(call: CudaCall, a: RoiMaxPooling) -> Step:
    return _forward(a, a.index)


@primitive("plain")
def roi_max_pooling_backward(call: CudaCall, a: RoiMaxPoolingBackward) -> Step:
    return _backward(a, a.index)


@primitive("plain")
def roi_average_pooling(call: CudaCall, a: RoiAveragePooling) -> Step:
    return _forward(a)


@primitive("plain")
def roi_average_pooling_backward(call: CudaCall, a: RoiAveragePoolingBackward) -> Step:
    return _backward(a)


@primitive("plain")
def roi_sampling(call: CudaCall, a: RoiSampling) -> Step:
    return _forward(a)


@primitive("plain")
def roi_sampling_backward(call: CudaCall, a: RoiSamplingBackward) -> Step:
    return _backward(a)


@primitive("plain")
def roi_warping_rois_backward(call: CudaCall, a: RoiWarpingRoisBackward) -> Step:
    return _run(
        a, [a.x, a.rois, a.dy, a.drois], maps=a.x.shape, bins=a.dy.shape,
        items=a.x.shape[0], over=a.dy, blocks=a.dy.shape[0], warp=True,
    )  # fmt: skip


@primitive("plain")
def hardest(call: CudaCall, a: Hardest) -> Step:
    macros: dict[str, Any] = dict.fromkeys(("C", "H", "W", "D", "BH", "BW", "WARP"), 1)
    macros |= {"SCALE": "1.0f", "PAD": "0.0f"}
    numbers = [np.int32(a.count), np.int32(math.prod(a.rois.shape[2:])), np.int64(a.y.count)]
    function = kernel("regions", "hardest", **macros)
    return launch(function, blocks_for(a.y.count), [a.rois, a.loss, a.y, *numbers])
