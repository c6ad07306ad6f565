"""How the coordinates of one blob map to another's, by the layers between them.

A map from one blob to another is (axis, scale, shift): along the spatial axes, from `axis` on,
what is at x in the one is at scale * x + shift in the other. Axis None: all axes, as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...layer import layer_type
from ...layers.base import Layer
from ...layers.core.convolution import read_window
from ...proto import LayerParameter

CoordMap = tuple[int | None, Any, Any]

IDENTITY: CoordMap = (None, 1, 0)

FIELDS = {
    **dict.fromkeys(
        ("Convolution", "ConvolutionDepthwise", "Deconvolution", "DepthwiseConvolution", "Im2col"),
        "convolution_param",
    ),
    "Pooling": "pooling_param",
    "Crop": "crop_param",
}
"""Layers that move coordinates, and the settings that say how."""

_IN_PLACE = frozenset({"Concat", "Eltwise", "LRN", "MVN", "Slice", "Split", "Threshold"})
"""Types that leave each element where it is; so do all that can work in place."""


class UndefinedMapException(Exception):
    """A layer's outputs do not lie over its inputs: the map is not known."""


class AxisMismatchException(Exception):
    """Two maps begin at different axes."""


class CannotCrop(Exception):
    """No offset lays one blob over another; says why."""


def coord_map(layer: LayerParameter) -> CoordMap:
    """The map from a layer's input to its output. UserError where its window is badly set."""
    field = FIELDS.get(layer.type)
    if field == "crop_param":
        # Counted without the batch axis, as for convolution.
        return layer.crop_param.axis - 1, 1, -np.array(list(layer.crop_param.offset) or [0])
    if field:
        param = getattr(layer, field)
        if getattr(param, "global_pooling", False):
            raise UndefinedMapException
        window = read_window(Layer(layer, "TEST"), field, _spatial_axes(param))
        stride, pad = np.array(window.stride), np.array(window.pad)
        middle = (np.array(window.reach) - 1) / 2
        axis = getattr(param, "axis", 1)
        if layer.type == "Deconvolution":
            return axis, stride, middle - pad
        return axis, 1 / stride, (pad - middle) / stride
    found = layer_type(layer.type)
    if layer.type in _IN_PLACE or (found is not None and found.in_place):
        return IDENTITY
    raise UndefinedMapException


def _spatial_axes(param: Any) -> int:
    """For how many axes a window is given; 1: one number for all."""
    names = param.DESCRIPTOR.fields_by_name
    if any(param.HasField(name) for name in names if name.endswith(("_h", "_w"))):
        return 2
    given = [getattr(param, name, 1) for name in ("kernel_size", "stride", "pad", "dilation")]
    return max(1, *(1 if isinstance(value, int) else len(value) for value in given))


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


def crop_offset(given: CoordMap) -> list[int]:
    """Where to cut a blob, of this map to another, so that it lies over that: one number for all
    axes, or one each. CannotCrop where there is no such place."""
    _, scale, shift = given
    offset = -np.array(shift, ndmin=1)
    whole = np.round(offset)
    if not np.allclose(scale, 1):
        raise CannotCrop(f"scale mismatch on crop (scale {scale})")
    if np.any(whole < 0):
        raise CannotCrop(f"cannot crop negative offset (offset {offset})")
    if not np.allclose(whole, offset, rtol=0, atol=1e-6):
        raise CannotCrop(f"cannot crop noninteger offset (offset {offset})")
    return [int(value) for value in whole]
