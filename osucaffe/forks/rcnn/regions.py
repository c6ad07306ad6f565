"""The layers that look at regions (rois) of feature maps: those of Fast R-CNN and R-FCN, and
those of multi-task network cascades (Dai et al. 2016), whose masks weigh the features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...layers.base import Blobs, Flags, Layer, Program, Shape, Shapes, Tensor, register
from ...layers.core.combine import ByPosition
from . import primitives as ops


def check_rois(layer: Layer, shape: Shape, position: int = 1) -> int:
    """How many regions a bottom holds: (R, 5), image, x1, y1, x2, y2."""
    if len(shape) < 2 or shape[1] != 5:
        text = f"has shape {shape}, but must be R x 5: image, x1, y1, x2, y2"
        layer.fail(f"bottom[{position}]", text)
    return math.prod(shape) // 5


class Regions(Layer):
    """A layer over feature maps (bottom[0]) and rois (bottom[1])."""

    bottoms = (2, 2)
    no_gradient: tuple[int, ...] = (1,)
    settings: dict[str, Any]

    def check(self, bottom: Shapes) -> int:
        """The number of rois."""
        self.check_axes(bottom[0], field="bottom[0]")
        return check_rois(self, bottom[1])

    def read_pooled(self) -> tuple[int, int]:
        """pooled_h and pooled_w; `settings` gets the scale and the padding."""
        param = self.param.roi_pooling_param
        self.check_positive("roi_pooling_param", "pooled_h", "pooled_w")
        self.settings = {"scale": param.spatial_scale, "pad": param.pad_ratio}
        return param.pooled_h, param.pooled_w


@register("ROIPooling")
class ROIPooling(Regions):
    """The maximum of each bin of each region (Girshick 2015)."""

    def setup(self, bottom: Shapes) -> Shapes:
        count, pooled = self.check(bottom), self.read_pooled()
        return [(count, bottom[0][1], *pooled)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, rois, y = bottom[0].data, bottom[1].data, top[0].data
        self.index = self.tensor(y.shape, "int32")
        program.record(ops.RoiMaxPooling(x, rois, y, self.index, **self.settings))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, rois, dx = top[0].diff, bottom[1].data, bottom[0].diff
        program.record(ops.RoiMaxPoolingBackward(dy, rois, self.index, dx, **self.settings))


class Sampling(Regions):
    """Interpolated values at points of each region, as `settings` say."""

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.record(ops.RoiAlign(bottom[0].data, bottom[1].data, top[0].data, **self.settings))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if propagate_down[0]:
            dy, rois, dx = top[0].diff, bottom[1].data, bottom[0].diff
            program.record(ops.RoiAlignBackward(dy, rois, dx, **self.settings))


@register("ROIAlign")
class ROIAlign(Sampling):
    """Interpolated values at the points of a grid over each region (Cai & Vasconcelos 2018).

    There are pooled_h + 1 by pooled_w + 1: an average pooling of 2 x 2 at stride 1 makes bins.
    """

    messages = ("roi_pooling_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        count, (high, wide) = self.check(bottom), self.read_pooled()
        return [(count, bottom[0][1], high + 1, wide + 1)]


@register("PSROIPooling")
class PSROIPooling(Regions):
    """The average of each bin of each region, over channels of the bin's own (Dai et al. 2016)."""

    def setup(self, bottom: Shapes) -> Shapes:
        param, count = self.param.psroi_pooling_param, self.check(bottom)
        self.check_positive("psroi_pooling_param", "output_dim", "group_size")
        items, _, *extent = bottom[0]
        shape = (items, param.output_dim * param.group_size**2, *extent)
        self.check_bottom(bottom, 0, shape, ": output_dim channels for each of group_size^2 bins")
        self.scale = param.spatial_scale
        return [(count, param.output_dim, param.group_size, param.group_size)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, rois, y = bottom[0].data, bottom[1].data, top[0].data
        program.record(ops.PsroiPooling(x, rois, y, scale=self.scale))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, rois, dx = top[0].diff, bottom[1].data, bottom[0].diff
        program.record(ops.PsroiPoolingBackward(dy, rois, dx, scale=self.scale))


@register("BoxAnnotatorOHEM")
class BoxAnnotatorOHEM(Layer):
    """Labels and box weights of the rois of greatest loss, ignore_label and 0 for the others.

    Bottoms: rois, the loss of each, their labels, the weights of their boxes.
    """

    bottoms = (4, 4)
    tops = (2, 2)
    no_gradient = (0, 1, 2, 3)
    non_differentiable_tops = (0, 1)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.box_annotator_ohem_param
        self.check_positive("box_annotator_ohem_param", "roi_per_img")
        self.count, self.ignored = param.roi_per_img, param.ignore_label
        rois, _, _, weights = bottom
        count = check_rois(self, rois, 0)
        for i in (1, 2):
            self.check_count(bottom, i, count, like=", one for each of the rois")
        rest = rois[2:] if len(rois) > 2 else (1,) * (len(weights) - 2)
        if weights[:1] != rois[:1] or weights[2:] != rest:
            self.fail("bottom[3]", f"{weights} is not of the rois of bottom[0], {rois}")
        return [(rois[0], 1, *weights[2:]), weights]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        rois, loss, label, weights = (blob.data for blob in bottom)
        labels, chosen_weights = (blob.data for blob in top)
        chosen = self.tensor(labels.shape)
        program.record(ops.OhemSelect(rois, loss.view(chosen.shape), chosen, count=self.count))
        program.elementwise(
            [chosen, label.view(labels.shape)], [labels],
            formula="y = where(a > 0, b, ignored)", constants={"ignored": self.ignored},
        )  # fmt: skip
        by_roi: list[Tensor] = [weights, chosen]
        program.broadcast(by_roi, [chosen_weights], formula="y = a * b")


WARP: dict[str, Any] = {"pad": 0.0, "warp": True}


@register("ROIWarping")
class ROIWarping(Sampling):
    """Interpolated values where the bins of each region begin; corners get gradients, too.

    Those of the features are the exact ones: the fork leaves some out, where many bins share an
    element. Those of the corners are the fork's, as if they were not rounded.
    """

    no_gradient = ()

    def setup(self, bottom: Shapes) -> Shapes:
        param, count = self.param.roi_warping_param, self.check(bottom)
        self.check_positive("roi_warping_param", "pooled_h", "pooled_w")
        self.settings = {"scale": param.spatial_scale, **WARP}
        return [(count, bottom[0][1], param.pooled_h, param.pooled_w)]

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        super().backward(program, top, propagate_down, bottom)
        if propagate_down[1]:
            x, rois, dy = bottom[0].data, bottom[1], top[0].diff
            scale = self.param.roi_warping_param.spatial_scale
            program.record(ops.RoiWarpingRoisBackward(x, rois.data, dy, rois.diff, scale=scale))


@register("MaskPooling")
class MaskPooling(ByPosition):
    """The features of each region times its mask: N x C x H x W and N x 1 x H x W."""

    def setup(self, bottom: Shapes) -> Shapes:
        self.check_axes(bottom[0], field="bottom[0]")
        self.check_bottom(bottom, 1, (bottom[0][0], 1, *bottom[0][2:]), f" for {bottom[0]}")
        return super().setup(bottom)


@register("MaskResize")
class MaskResize(Layer):
    """Masks of another size, interpolated where each element of it begins in theirs.

    As the fork's: where a mask becomes more than twice as large, what stands beyond the last
    centre of its elements by more than half of one is 0. Gradients are the exact ones for larger
    sizes too, where the fork leaves some out.
    """

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.mask_resize_param, bottom[0]
        self.check_axes(shape)
        self.check_positive("mask_resize_param", "output_height", "output_width")
        # One region an image, which covers it.
        rois = np.zeros((shape[0], 5), np.float32)
        rois[:, 0], rois[:, 3:] = np.arange(shape[0]), shape[:1:-1]
        self.rois = self.tensor(rois.shape, persistent=True)
        self.initial = [(self.rois, rois)]
        return [(*shape[:2], param.output_height, param.output_width)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.record(ops.RoiAlign(bottom[0].data, self.rois, top[0].data, scale=1.0, **WARP))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.record(
            ops.RoiAlignBackward(top[0].diff, self.rois, bottom[0].diff, scale=1.0, **WARP)
        )
