"""Owns the layers of multi-task network cascades (Dai et al. 2016; daijifeng001/caffe-mnc).

Regions are warped to one size, and masks that are resized to it weigh their features.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import Blobs, Flags, Layer, Program, Shapes, Tensor, register
from .regions import Regions

WARP: dict[str, Any] = {"pad": 0.0, "warp": True}


@register("ROIWarping")
class ROIWarping(Regions):
    """Interpolated values where the bins of each region begin; corners get gradients, too.

    Those of the features are the exact ones: the fork leaves some out, where many bins share an
    element. Those of the corners are the fork's, as if they were not rounded.
    """

    no_gradient = ()

    def setup(self, bottom: Shapes) -> Shapes:
        param, count = self.param.roi_warping_param, self.check(bottom)
        self.check_positive("roi_warping_param", "pooled_h", "pooled_w")
        self.scale = param.spatial_scale
        return [(count, bottom[0][1], param.pooled_h, param.pooled_w)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, rois, y = bottom[0].data, bottom[1].data, top[0].data
        program.roi_sampling(x, rois, y, scale=self.scale, **WARP)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        x, rois, dy = bottom[0], bottom[1], top[0].diff
        if propagate_down[0]:
            program.roi_sampling_backward(dy, rois.data, x.diff, scale=self.scale, **WARP)
        if propagate_down[1]:
            program.roi_warping_rois_backward(x.data, rois.data, dy, rois.diff, scale=self.scale)


@register("MaskPooling")
class MaskPooling(Layer):
    """The features of each region times its mask: N x C x H x W and N x 1 x H x W."""

    bottoms = (2, 2)

    def setup(self, bottom: Shapes) -> Shapes:
        features, mask = bottom
        if len(features) != 4 or mask != (features[0], 1, *features[2:]):
            self.fail(
                "bottom[1]",
                f"has shape {mask}, but must be N x 1 x H x W of bottom[0], N x C x H x W: "
                f"{features}",
            )
        return [features]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.broadcast([blob.data for blob in bottom], [top[0].data], formula="y = a * b")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, (features, mask) = top[0].diff, bottom
        if propagate_down[0]:
            inputs: list[Tensor] = [dy, mask.data]
            program.broadcast(inputs, [features.diff], formula="y = a * b")
        if propagate_down[1]:
            program.reduce([dy, features.data], mask.diff, formula="y = a * b", axes=(1,))


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
        # Each image is a region of its own.
        whole = np.zeros((shape[0], 5), np.float32)
        whole[:, 0], whole[:, 3:] = np.arange(shape[0]), shape[:1:-1]
        self.rois = self.tensor(whole.shape, persistent=True)
        self.initial = [(self.rois, whole)]
        return [(*shape[:2], param.output_height, param.output_width)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.roi_sampling(bottom[0].data, self.rois, top[0].data, scale=1.0, **WARP)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.roi_sampling_backward(top[0].diff, self.rois, bottom[0].diff, scale=1.0, **WARP)
