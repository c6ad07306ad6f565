"""coord_map as scripts use it: the map between two tops of a NetSpec, and the Crop that
follows from it. What maps are: graph/prototxt/geometry.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.prototxt import geometry
from ..graph.prototxt.geometry import (
    IDENTITY,
    AxisMismatchException,
    CannotCrop,
    CoordMap,
    UndefinedMapException,
    compose,
    crop_offset,
    inverse,
)
from ..proto import LayerParameter
from .net_spec import Function, Top, assign_proto, layers

__all__ = [
    "AxisMismatchException",
    "UndefinedMapException",
    "compose",
    "coord_map",
    "coord_map_from_to",
    "crop",
    "inverse",
]


def coord_map(fn: Function) -> CoordMap:
    """The map from a layer's input to its output."""
    layer = LayerParameter(type=fn.type_name)
    if field := geometry.FIELDS.get(fn.type_name):
        given = fn.params.get(field, fn.params)
        names = getattr(layer, field).DESCRIPTOR.fields_by_name
        assign_proto(layer, field, {key: value for key, value in given.items() if key in names})
    return geometry.coord_map(layer)


def _ancestors(top: Top) -> dict[Top, CoordMap]:
    """The maps to this blob from every one that it is computed from, itself included."""
    maps: dict[Top, CoordMap] = {top: IDENTITY}
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
    mapped = coord_map_from_to(top_from, top_to)
    try:
        offset = crop_offset(mapped)
    except CannotCrop as error:
        raise AssertionError(str(error)) from None
    # 1 is for the batch axis, before the axes that maps count.
    param = {"axis": (mapped[0] or 0) + 1, "offset": offset}
    return layers.Crop(top_from, top_to, crop_param=param)
