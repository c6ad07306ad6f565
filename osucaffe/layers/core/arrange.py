"""Owns the layers that put whole blobs together, cut them apart or repeat them."""

from __future__ import annotations

import itertools
import math
from typing import Any

from ..base import Blobs, Flags, Layer, Program, Shapes, register


@register("Split")
class Split(Layer):
    """Several names for one blob, whose gradients are added (inserted where a blob is shared)."""

    tops = (1, None)
    alias = ("data",)

    def setup(self, bottom: Shapes) -> Shapes:
        return bottom * len(self.param.top)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.sum([each.diff for each in top], bottom[0].diff)


@register("Silence")
class Silence(Layer):
    """Takes blobs that nobody wants, so that they are not outputs of the net."""

    bottoms = (1, None)
    tops = (0, 0)

    def setup(self, bottom: Shapes) -> Shapes:
        return []

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        for blob, wanted in zip(bottom, propagate_down, strict=True):
            if wanted:
                program.fill(blob.diff, value=0.0)


class AlongAxis(Layer):
    """What Concat and Slice share: an axis, which both know by an old name too."""

    def read_axis(self, field: str, old: str, dimensions: int) -> int:
        """The axis from self.param.field, or from the field `old` of the same message."""
        param = getattr(self.param, field)
        if not param.HasField(old):
            return self.axis(param.axis, dimensions, f"{field}.axis")
        if param.HasField("axis"):
            self.fail(f"{field}.axis", f"cannot be combined with {old}: give one or the other")
        return self.axis(getattr(param, old), dimensions, f"{field}.{old}")


@register("Concat")
class Concat(AlongAxis):
    """Put blobs behind one another along an axis."""

    bottoms = (1, None)

    def setup(self, bottom: Shapes) -> Shapes:
        first = bottom[0]
        self.along = axis = self.read_axis("concat_param", "concat_dim", len(first))
        for i, shape in enumerate(bottom):
            others = (shape[:axis], shape[axis + 1 :])
            if len(shape) != len(first) or others != (first[:axis], first[axis + 1 :]):
                self.fail(
                    f"bottom[{i}]",
                    f"has shape {shape}, but bottom[0] has {first}: they may differ only along "
                    f"axis {axis}",
                )
        return [(*first[:axis], sum(shape[axis] for shape in bottom), *first[axis + 1 :])]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.concat([blob.data for blob in bottom], top[0].data, axis=self.along)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not any(propagate_down):
            return
        parts: list[Any] = [blob.diff for blob in bottom]
        if propagate_down.count(False) == 1:  # the extent of a single part that is not wanted
            parts[propagate_down.index(False)] = None  # can be told from the others
        program.split(top[0].diff, parts, axis=self.along)


@register("Slice")
class Slice(AlongAxis):
    """Cut a blob along an axis, at slice_points or into equal parts."""

    tops = (1, None)

    def setup(self, bottom: Shapes) -> Shapes:
        shape, param, parts = bottom[0], self.param.slice_param, len(self.param.top)
        self.along = axis = self.read_axis("slice_param", "slice_dim", len(shape))
        points = list(param.slice_point)
        if not points:
            if shape[axis] % parts:
                self.fail("top", f"{parts} do not divide extent {shape[axis]} of axis {axis}")
            points = [shape[axis] // parts * i for i in range(1, parts)]
        if len(points) != parts - 1:
            self.fail("slice_param.slice_point", f"{parts} tops need {parts - 1} of them")
        edges = [0, *points, shape[axis]]
        if any(stop <= start for start, stop in itertools.pairwise(edges)):
            self.fail(
                "slice_param.slice_point",
                f"{points}: they must increase and be inside extent {shape[axis]} of axis {axis}",
            )
        return [
            (*shape[:axis], stop - start, *shape[axis + 1 :])
            for start, stop in itertools.pairwise(edges)
        ]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.split(bottom[0].data, [blob.data for blob in top], axis=self.along)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.concat([blob.diff for blob in top], bottom[0].diff, axis=self.along)


@register("Tile")
class Tile(Layer):
    """Repeat a blob along an axis."""

    def setup(self, bottom: Shapes) -> Shapes:
        shape, tiles = bottom[0], self.param.tile_param.tiles
        axis = self.axis(self.param.tile_param.axis, len(shape), "tile_param.axis")
        if tiles < 1:
            self.fail("tile_param.tiles", f"is {tiles}: it must be at least 1")
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis:])
        self.one, self.all = (outer, 1, inner), (outer, tiles, inner)
        return [(*shape[:axis], shape[axis] * tiles, *shape[axis + 1 :])]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data.view(self.one), top[0].data.view(self.all)
        program.broadcast([x], [y], formula="y = a")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff.view(self.all), bottom[0].diff.view(self.one)
        program.reduce([dy], dx, formula="y = a", axes=(1,))
