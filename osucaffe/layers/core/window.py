"""Owns how sliding windows are read from parameters: kernel, stride, pad and dilation by axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..base import Layer, Shape

MOST = 2**30
"""Of any of these numbers: what is computed with them is within an int."""


@dataclass(frozen=True)
class Window:
    """A sliding window: one number for each spatial axis."""

    kernel: Shape
    stride: Shape
    pad: Shape
    dilation: Shape

    @property
    def settings(self) -> dict[str, Any]:
        """What convolution primitives want, besides the kernel."""
        return {"stride": self.stride, "pad": self.pad, "dilation": self.dilation}

    @property
    def reach(self) -> Shape:
        """How far each kernel reaches, holes included."""
        pairs = zip(self.kernel, self.dilation, strict=True)
        return tuple(dilation * (kernel - 1) + 1 for kernel, dilation in pairs)

    def positions(self, extents: Shape) -> Shape:
        """How often the window fits into padded extents (may be less than 1: it does not)."""
        axes = zip(extents, self.reach, self.stride, self.pad, strict=True)
        return tuple((x + 2 * pad - reach) // stride + 1 for x, reach, stride, pad in axes)

    def covered(self, positions: Shape) -> Shape:
        """The extents that so many positions cover, less padding (transposed convolution)."""
        axes = zip(positions, self.reach, self.stride, self.pad, strict=True)
        return tuple((x - 1) * stride + reach - 2 * pad for x, reach, stride, pad in axes)


def read_window(layer: Layer, field: str, axes: int) -> Window:
    """Read `kernel_size`, `stride`, `pad`, `dilation` (or `kernel_h`, ...) of layer.param.field."""
    return Window(
        kernel=_by_axis(layer, field, "kernel_size", axes, None, least=1),
        stride=_by_axis(layer, field, "stride", axes, 1, least=1),
        pad=_by_axis(layer, field, "pad", axes, 0, least=0),
        dilation=_by_axis(layer, field, "dilation", axes, 1, least=1),
    )


def _by_axis(
    layer: Layer, field: str, name: str, axes: int, default: int | None, *, least: int
) -> Shape:
    """One number for each axis: given as one for all, one each, or by `_h` and `_w`."""
    param: Any = getattr(layer.param, field)
    known = param.DESCRIPTOR.fields_by_name
    if name not in known:
        return (1,) * axes
    value = getattr(param, name)
    if isinstance(value, int):
        given = [value] if param.HasField(name) else []
    else:
        given = list(value)
    by_letter = [f"{name.removesuffix('_size')}_{letter}" for letter in "hw"]
    present = [each for each in by_letter if each in known and param.HasField(each)]
    where = f"{field}.{name}"
    if present:
        where = f"{field}.{present[0]}"
        if given:
            layer.fail(where, f"cannot be combined with {name}: give one or the other")
        if axes != 2:
            layer.fail(where, f"is for 2 spatial axes, here are {axes}: give {name} for each")
        if len(present) == 1 and least > 0:
            missing = next(each for each in by_letter if each not in present)
            layer.fail(where, f"needs {missing}, too")
        given = [getattr(param, each) for each in by_letter]
    elif not given:
        if default is None:
            layer.fail(where, "is missing")
        given = [default]
    if len(given) not in (1, axes):
        layer.fail(where, f"is given {len(given)} times: give it once, or for each of {axes} axes")
    for number in given:
        if number < least:
            layer.fail(where, f"is {number}: it must be at least {least}")
        if number > MOST:
            layer.fail(where, f"is {number}: it must be at most {MOST}")
    return tuple(given) if len(given) == axes else tuple(given) * axes
