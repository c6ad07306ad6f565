"""The layers that give blobs another shape, a part of them or their elements another order, or
that put whole blobs together, cut them apart or repeat them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ..base import Blobs, Flags, Layer, Program, Reshaped, Shape, Shapes, register


@register("Reshape")
class Reshape(Layer):
    """The same data under another shape (dim 0: as before, -1: what is left)."""

    alias = ("data", "diff")

    def setup(self, bottom: Shapes) -> Shapes:
        shape, param = bottom[0], self.param.reshape_param
        # Here an axis is a place between two axes, so there is one more than dimensions.
        start = self.axis(param.axis, len(shape) + 1, "reshape_param.axis")
        stop = len(shape) if param.num_axes == -1 else start + param.num_axes
        if param.num_axes < -1 or stop > len(shape):
            self.fail("reshape_param.num_axes", f"is {param.num_axes}, out of range for {shape}")
        dims = [int(dim) for dim in param.shape.dim]
        for i, dim in enumerate(dims):
            if dim == 0 and start + i >= len(shape):
                self.fail("reshape_param.shape", f"dim {i} is 0, but {shape} has no such axis")
            if dim == 0:
                dims[i] = shape[start + i]
        if dims.count(-1) > 1 or min(dims, default=0) < -1:
            self.fail("reshape_param.shape", f"{dims}: one dim may be -1, the others at least 0")
        before, after, count = shape[:start], shape[stop:], math.prod(shape)
        product = math.prod(before) * math.prod(after) * math.prod(dim for dim in dims if dim != -1)
        if -1 in dims and product and count % product == 0:
            dims[dims.index(-1)], product = count // product, count
        if -1 in dims or product != count:
            self.fail("reshape_param.shape", f"{dims} does not hold the {count} of {shape}")
        return [(*before, *dims, *after)]


@register("Flatten")
class Flatten(Layer):
    """Make one axis of the axes from `axis` to `end_axis`."""

    alias = ("data", "diff")

    def setup(self, bottom: Shapes) -> Shapes:
        shape, param = bottom[0], self.param.flatten_param
        start = self.axis(param.axis, len(shape), "flatten_param.axis")
        stop = self.axis(param.end_axis, len(shape), "flatten_param.end_axis") + 1
        if stop <= start:
            self.fail("flatten_param.end_axis", f"{stop - 1} comes before axis {start}")
        return [(*shape[:start], math.prod(shape[start:stop]), *shape[stop:])]


@register("Crop")
class Crop(Layer):
    """Cut bottom[0] to the extents of bottom[1], from `axis` on, beginning at offsets."""

    bottoms = (2, 2)

    def setup(self, bottom: Shapes) -> Shapes:
        shape, like = bottom
        param = self.param.crop_param
        axis = self.axis(param.axis, len(shape), "crop_param.axis")
        if len(like) != len(shape):
            self.fail("bottom[1]", f"has shape {like}: as many axes as {shape} are needed")
        offsets, cropped = list(param.offset), len(shape) - axis
        if len(offsets) not in (0, 1, cropped):
            self.fail("crop_param.offset", f"needs 1 number or {cropped}, one for each axis")
        offsets = offsets * cropped if len(offsets) == 1 else offsets or [0] * cropped
        self.offsets = (*(0,) * axis, *offsets)
        top = (*shape[:axis], *like[axis:])
        for i, (offset, small, large) in enumerate(zip(self.offsets, top, shape, strict=True)):
            if offset + small > large:
                text = f"{offset} + extent {small} of axis {i} reaches beyond {large}"
                self.fail("crop_param.offset", text)
        return [top]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.crop(bottom[0].data, top[0].data, offsets=self.offsets)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            program.crop_backward(top[0].diff, bottom[0].diff, offsets=self.offsets)
        if propagate_down[1]:
            program.fill(bottom[1].diff, value=0.0)


@register("BatchReindex")
class BatchReindex(Layer):
    """Pick items of the batch bottom[0] by the indices in bottom[1]."""

    bottoms = (2, 2)
    no_gradient = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        if len(bottom[1]) != 1:
            self.fail("bottom[1]", f"has shape {bottom[1]}, but must have one axis")
        if not bottom[0]:
            self.fail("bottom[0]", "has no axis: there is nothing to take items of")
        return [(*bottom[1], *bottom[0][1:])]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.gather(bottom[0].data, bottom[1].data, top[0].data)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.gather_backward(top[0].diff, bottom[1].data, bottom[0].diff)


@register("Filter")
class Filter(Layer):
    """Of every bottom but the last, the items of the batch where the last one is not 0."""

    bottoms = (2, None)
    tops = (1, None)
    reshapes = dynamic = True
    picked: int | None = None
    """How many items the last selector picked; all, before the first forward pass."""

    def setup(self, bottom: Shapes) -> Shapes:
        *data, selector = bottom
        if len(self.param.top) != len(data):
            self.fail("top", f"needs {len(data)}, one for each bottom but the last")
        self.no_gradient = (len(data),)
        if not selector or math.prod(selector[1:]) != 1:
            self.fail(f"bottom[{len(data)}]", f"{selector} must hold one number per item")
        for i, shape in enumerate(data):
            if shape[:1] != selector[:1]:
                self.fail(f"bottom[{i}]", f"{shape} is not of the batch of the last, {selector}")
        if self.picked is None:
            self.picked = selector[0]
        return [(self.picked, *shape[1:]) for shape in data]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.index = self.tensor(top[0].shape[:1])
        program.host([bottom[-1].data], [self.index], function=self._pick)
        for x, y in zip(bottom, top, strict=False):
            program.gather(x.data, self.index, y.data)

    def _pick(self, selector: list[np.ndarray], index: list[np.ndarray]) -> None:
        positions = np.flatnonzero(selector[0])
        if len(positions) != len(index[0]):
            self.picked = len(positions)
            raise Reshaped
        index[0][...] = positions

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        for x, y, down in zip(bottom, top, propagate_down, strict=False):
            if down:
                program.gather_backward(y.diff, self.index, x.diff)


class Reordered(Layer):
    """The elements in another order: those of the bottom, seen as some shape, with other axes."""

    def order(self, shape: Shape, axes: Shape) -> Shape:
        """The new axis i is axis axes[i] of the shape. Returns the new shape."""
        self.axes, self.shapes = axes, (shape, tuple(shape[axis] for axis in axes))
        return self.shapes[1]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.permute(bottom[0].data, top[0].data, self.axes, self.shapes[0])

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        axes = tuple(map(self.axes.index, range(len(self.axes))))
        program.permute(top[0].diff, bottom[0].diff, axes, self.shapes[1])


@register("PixelShuffle")
class PixelShuffle(Reordered):
    """Depth to space: r x r channels become one, r times as high and wide (Shi et al. 2016)."""

    def setup(self, bottom: Shapes) -> Shapes:
        shape, factor = bottom[0], self.param.pixel_shuffle_param.upscale_factor
        self.check_axes(shape)
        items, channels, height, width = shape
        if factor < 1 or channels % (factor * factor):
            text = f"is {factor}: its square must divide {channels} channels"
            self.fail("pixel_shuffle_param.upscale_factor", text)
        channels //= factor * factor
        self.order((items, channels, factor, factor, height, width), (0, 1, 4, 2, 5, 3))
        return [(items, channels, height * factor, width * factor)]


@register("ShuffleChannel")
class ShuffleChannel(Reordered):
    """Channels of the groups in turn: the first of each, then the second (Zhang et al. 2018)."""

    def setup(self, bottom: Shapes) -> Shapes:
        shape, group = bottom[0], self.param.shuffle_channel_param.group
        if len(shape) < 2 or group < 1 or shape[1] % group:
            self.fail("shuffle_channel_param.group", f"{group} does not divide axis 1 of {shape}")
        self.order((shape[0], group, shape[1] // group, math.prod(shape[2:])), (0, 2, 1, 3))
        return [shape]


@register("Split")
class Split(Layer):
    """Several names for one blob, whose gradients are added (inserted where a blob is shared)."""

    tops = (1, None)
    alias = ("data",)
    takes_empty = True

    def setup(self, bottom: Shapes) -> Shapes:
        return bottom * len(self.param.top)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.sum([blob.diff for blob in top], bottom[0].diff)


@register("Silence")
class Silence(Layer):
    """Takes blobs that nobody wants, so that they are not outputs of the net."""

    bottoms = (1, None)
    tops = (0, 0)
    takes_empty = True

    def setup(self, bottom: Shapes) -> Shapes:
        return []

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        for blob, down in zip(bottom, propagate_down, strict=True):
            if down:
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
    """Put blobs after one another along an axis."""

    bottoms = (1, None)

    def setup(self, bottom: Shapes) -> Shapes:
        first = bottom[0]
        self.along = axis = self.read_axis("concat_param", "concat_dim", len(first))
        for i, shape in enumerate(bottom):
            extent = shape[axis] if len(shape) == len(first) else first[axis]
            like = (*first[:axis], extent, *first[axis + 1 :])
            self.check_bottom(bottom, i, like, f" but for axis {axis}, as bottom[0], {first}")
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
        edges = itertools.pairwise([0, *points, shape[axis]])
        extents = [stop - start for start, stop in edges]
        if min(extents) < 1:
            text = f"{points}: they must increase, inside extent {shape[axis]} of axis {axis}"
            self.fail("slice_param.slice_point", text)
        return [(*shape[:axis], extent, *shape[axis + 1 :]) for extent in extents]

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
        self.check_positive("tile_param", "tiles")
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis:])
        self.one, self.all = (outer, 1, inner), (outer, tiles, inner)
        return [(*shape[:axis], shape[axis] * tiles, *shape[axis + 1 :])]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data.view(self.one), top[0].data.view(self.all)
        program.broadcast([x], [y], formula="y = a")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff.view(self.all), bottom[0].diff.view(self.one)
        program.reduce([dy], dx, formula="y = a", axes=(1,))
