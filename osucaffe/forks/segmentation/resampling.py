"""The layers that make images larger or smaller: Upsample and Interp."""

from __future__ import annotations

import math
from typing import Any

from ...layers.base import Blobs, Flags, Layer, Program, Shape, Shapes, register
from . import primitives as ops


@register("Upsample")
class Upsample(Layer):
    """Puts each element where the maximum stood that a Pooling noted in its mask (SegNet).

    With one bottom it is the layer of YOLO's nets: each element fills a square.
    """

    bottoms = (2, 2)
    no_gradient = (1,)

    @classmethod
    def form(cls, param: Any) -> type[Layer]:
        return Magnified if len(param.bottom) == 1 else cls

    def setup(self, bottom: Shapes) -> Shapes:
        self.check_axes(bottom[0])
        if bottom[1] != bottom[0]:
            self.fail(
                "bottom[1]",
                f"has shape {bottom[1]}, but bottom[0] has {bottom[0]}: it must be the mask, the "
                "second top of the Pooling whose bottom has the wanted size",
            )
        return [(*bottom[0][:2], *self._extents(bottom[0][2:]))]

    def _extents(self, small: Shape) -> Shape:
        """The extents of the top: given, or multiples of the bottom's."""
        param = self.param.upsample_param
        for height, width in ("scale_h", "scale_w"), ("upsample_h", "upsample_w"):
            if param.HasField(height) != param.HasField(width):
                given, other = (height, width) if param.HasField(height) else (width, height)
                self.fail(f"upsample_param.{given}", f"needs {other}, too")
        if param.HasField("upsample_h"):
            size = param.upsample_h, param.upsample_w
            if min(size) < 1:
                self.fail("upsample_param.upsample_h", "and upsample_w must be at least 1")
            return size
        by_axis = param.HasField("scale_h")
        factors = (param.scale_h, param.scale_w) if by_axis else (param.scale, param.scale)
        if min(factors) < 1:
            self.fail("upsample_param.scale", "must be at least 1")
        odd = param.pad_out_h, param.pad_out_w
        for name, cut, factor in zip(("pad_out_h", "pad_out_w"), odd, factors, strict=True):
            if cut and factor != 2:
                self.fail(f"upsample_param.{name}", f"is for a scale of 2, but here it is {factor}")
        axes = zip(small, factors, odd, strict=True)
        return tuple(extent * factor - int(cut) for extent, factor, cut in axes)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.record(ops.Unpooling(bottom[0].data, bottom[1].data, top[0].data))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.record(ops.UnpoolingBackward(top[0].diff, bottom[1].data, bottom[0].diff))


class Magnified(Layer):
    """Each element becomes a square of scale x scale (MobileNet-YOLO, darknet2caffe)."""

    messages = ("upsample_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        param, (*outer, height, width) = self.param.upsample_param, bottom[0][:]
        self.check_axes(bottom[0])
        for field, _ in param.ListFields():
            if field.name != "scale":
                self.fail(f"upsample_param.{field.name}", "is for two bottoms: the second, a mask")
        scale = param.scale if param.HasField("scale") else 1  # as in MobileNet-YOLO
        if scale < 1:
            self.fail("upsample_param.scale", "must be at least 1")
        rows = math.prod(outer) * height
        self.small, self.squares = (rows, 1, width, 1), (rows, scale, width, scale)
        return [(*outer, height * scale, width * scale)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data.view(self.small), top[0].data.view(self.squares)
        program.broadcast([x], [y], formula="y = a")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff.view(self.squares), bottom[0].diff.view(self.small)
        program.reduce([dy], dx, formula="y = a", axes=(1, 3))


@register("Interp")
class Interp(Layer):
    """Bilinear interpolation with corners on corners, perhaps of a part (DeepLab, PSPNet).

    The size: by shrink_factor s, (n - 1) / s + 1, and then by zoom_factor z, n + (n - 1) (z - 1);
    height and width where neither of the factors is given, or both are; with use_blob_size those of
    a second bottom. pad_beg, pad_end: 0, or
    less: that many rows and columns are cut off first.
    """

    bottoms = (1, 2)
    no_gradient = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.interp_param
        self.check_axes(bottom[0])
        if param.use_blob_size != (len(bottom) == 2):
            self.fail("bottom", "must be two with interp_param.use_blob_size, else one")
        for name in ("pad_beg", "pad_end"):
            if getattr(param, name) > 0:
                self.fail(f"interp_param.{name}", "must be 0, or less to cut the image")
        self.begin = -param.pad_beg
        cut = self.begin - param.pad_end
        inner = tuple(extent - cut for extent in bottom[0][2:])
        if min(inner) < 1:
            extents = "x".join(map(str, bottom[0][2:]))
            self.fail("interp_param.pad_beg", f"and pad_end leave nothing of {extents}")
        self.part = (*bottom[0][:2], *inner) if cut else None
        if param.use_blob_size:
            self.check_axes(bottom[1], field="bottom[1]")
            return [(*bottom[0][:2], *bottom[1][2:])]
        return [(*bottom[0][:2], *self._size(inner))]

    def _size(self, extents: Shape) -> Shape:
        """The extents of the top. Which fields are given decides, not what they say."""
        param = self.param.interp_param
        for name in ("zoom_factor", "shrink_factor"):
            if getattr(param, name) < 1:
                self.fail(f"interp_param.{name}", f"is {getattr(param, name)}: at least 1")
        shrinks, zooms = param.HasField("shrink_factor"), param.HasField("zoom_factor")
        if shrinks == zooms and param.HasField("height") and param.HasField("width"):
            size = param.height, param.width
            if min(size) < 1:
                self.fail("interp_param", f"height and width are {size[0]} x {size[1]}: at least 1")
            return size
        if not (shrinks or zooms):
            self.fail("interp_param", "needs height and width, or zoom_factor, or shrink_factor")
        shrunk = [(n - 1) // param.shrink_factor + 1 for n in extents]
        return tuple(n + (n - 1) * (param.zoom_factor - 1) for n in shrunk)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].data
        if self.part:
            x, image = self.tensor(self.part), x
            program.crop(image, x, offsets=(0, 0, self.begin, self.begin))
        program.record(ops.ResizeBilinear(x, top[0].data))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dx = bottom[0].diff if self.part is None else self.tensor(self.part)
        program.record(ops.ResizeBilinearBackward(top[0].diff, dx))
        if self.part:
            offsets = (0, 0, self.begin, self.begin)
            program.crop_backward(dx, bottom[0].diff, offsets=offsets)


@register("BilinearInterpolation")
class BilinearInterpolation(Layer):
    """bottom[0] in the height and width of bottom[1], corners on corners (ctensmeyer/caffe)."""

    bottoms = (2, 2)
    no_gradient = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        for i, shape in enumerate(bottom):
            self.check_axes(shape, field=f"bottom[{i}]")
        return [(*bottom[0][:2], *bottom[1][2:])]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.record(ops.ResizeBilinear(bottom[0].data, top[0].data))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.record(ops.ResizeBilinearBackward(top[0].diff, bottom[0].diff))
