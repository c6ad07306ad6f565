"""Owns how the coordinates of one blob map to another's, to crop a blob onto another.

A map from one blob to another is (axis, scale, shift): along the spatial axes, from `axis` on,
what is at x in the one is at scale * x + shift in the other. Axis None: all axes, as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .net_spec import Function, Top, layers

CoordMap = tuple[int | None, Any, Any]

PASS_THROUGH_LAYERS = frozenset(
    {"AbsVal", "BNLL", "BatchNorm", "Bias", "Dropout", "ELU", "Eltwise", "Exp", "LRN", "Log", "MVN"}
    | {"PReLU", "Power", "ReLU", "Scale", "Sigmoid", "Split", "TanH", "Threshold"}
)


class UndefinedMapException(Exception):
    """A layer's outputs do not lie over its inputs: the map is not known."""


class AxisMismatchException(Exception):
    """Two maps begin at different axes."""


def conv_params(fn: Function) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Axis, stride, extent of the dilated kernel, and pad of a layer with windows."""
    params = fn.params.get("convolution_param", fn.params)
    if any(key.endswith(("_h", "_w")) for key in params):
        raise AssertionError(f"{fn.type_name}: give kernel_size, stride and pad, not _h and _w")
    kernel = np.array(params["kernel_size"], ndmin=1)
    stride, pad, dilation = (
        np.array(params.get(name, default), ndmin=1)
        for name, default in (("stride", 1), ("pad", 0), ("dilation", 1))
    )
    return params.get("axis", 1), stride, (kernel - 1) * dilation + 1, pad


def crop_params(fn: Function) -> tuple[int, np.ndarray]:
    """Axis and offset of a Crop layer."""
    params = fn.params.get("crop_param", fn.params)
    return params.get("axis", 2), np.array(params.get("offset", 0), ndmin=1)


def coord_map(fn: Function) -> CoordMap:
    """The map from a layer's input to its output."""
    if fn.type_name in ("Convolution", "Pooling", "Im2col"):
        axis, stride, kernel, pad = conv_params(fn)
        return axis, 1 / stride, (pad - (kernel - 1) / 2) / stride
    if fn.type_name == "Deconvolution":
        axis, stride, kernel, pad = conv_params(fn)
        return axis, stride, (kernel - 1) / 2 - pad
    if fn.type_name in PASS_THROUGH_LAYERS:
        return None, 1, 0
    if fn.type_name == "Crop":
        axis, offset = crop_params(fn)
        return axis - 1, 1, -offset  # counted without the batch axis, as for convolution
    raise UndefinedMapException


def compose(base_map: CoordMap, next_map: CoordMap) -> CoordMap:
    """The map that goes through next_map first, then base_map."""
    axis, scale, shift = base_map
    next_axis, next_scale, next_shift = next_map
    if axis is not None and next_axis is not None and axis != next_axis:
        raise AxisMismatchException
    return (
        next_axis if axis is None else axis,
        scale * next_scale,
        scale * next_shift + shift,
    )


def inverse(given: CoordMap) -> CoordMap:
    """The map the other way."""
    axis, scale, shift = given
    return axis, 1 / scale, -shift / scale


def _ancestors(top: Top) -> dict[Top, CoordMap]:
    """The maps to this blob from every one that it is computed from, itself included."""
    maps: dict[Top, CoordMap] = {top: (None, 1, 0)}
    frontier = [top]
    while frontier:
        here = frontier.pop()
        # What a Crop takes as its second input gives only a size.
        sources: Sequence[Top] = here.fn.inputs[: 1 if here.fn.type_name == "Crop" else None]
        for source in sources:
            try:
                composed = compose(maps[here], coord_map(here.fn))
            except UndefinedMapException:
                continue
            if source not in maps:
                maps[source] = composed
                frontier.append(source)
    return maps


def coord_map_from_to(top_from: Top, top_to: Top) -> CoordMap:
    """The map from one blob to another that is computed from the same blob.

    RuntimeError where layers that keep no coordinates lie between them.
    """
    left, right = _ancestors(top_from), _ancestors(top_to)
    for origin, there in right.items():
        if origin in left:
            return compose(there, inverse(left[origin]))
    raise RuntimeError("Could not compute map between tops; are they connected by spatial layers?")


def crop(top_from: Top, top_to: Top) -> Any:
    """A Crop layer that cuts top_from to what lies over top_to.

    AssertionError where the scales differ, or the offsets are negative or no whole numbers.
    """
    axis, scale, shift = coord_map_from_to(top_from, top_to)
    offset = -np.array(shift, ndmin=1)
    if np.any(np.asarray(scale) != 1):
        raise AssertionError(f"scale mismatch on crop (scale {scale})")
    if np.any(offset < 0):
        raise AssertionError(f"cannot crop negative offset (offset {offset})")
    if np.any(np.round(offset) != offset):
        raise AssertionError(f"cannot crop noninteger offset (offset {offset})")
    # 1 is for the batch axis, before the axes that maps count.
    return layers.Crop(
        top_from,
        top_to,
        crop_param={"axis": (axis or 0) + 1, "offset": [int(value) for value in np.round(offset)]},
    )
