"""SmoothL1Loss (SSD's, and Fast R-CNN's with a knee and weights), and R-FCN's losses.

The latter also give the loss of each region, by which BoxAnnotatorOHEM chooses regions.
"""

from __future__ import annotations

import math

from ...layers.base import Blobs, Program, Shape, Shapes, register
from ...layers.core.cross_entropy import SoftmaxWithLoss
from ...layers.core.losses import Differences, by_region, read_divisor


@register("SmoothL1Loss")
class SmoothL1Loss(Differences):
    """The batch's mean of distances, squared below 1 / sigma^2 (bottoms 2, 3: weights of each).

    A second top tells the distance of each region (Cascade R-CNN).
    """

    bottoms = (2, 4)
    tops = (1, 2)
    no_gradient = (2, 3)

    def setup(self, bottom: Shapes) -> Shapes:
        super().setup(bottom)
        sigma = self.param.smooth_l1_loss_param.sigma
        if sigma <= 0:
            self.fail("smooth_l1_loss_param.sigma", f"is {sigma:g}, but must be above 0")
        self.constants["square"] = sigma * sigma
        # With weights, c is the one inside and d the one outside; what follows is the gradient.
        weights = "cd"[: len(bottom) - 2]
        gap = "gap = c * (a - b)" if weights else "gap = a - b"
        curve = "where(abs(gap) * square < 1, 0.5 * square * gap * gap, abs(gap) - 0.5 / square)"
        self.distance = f"{gap}; y = {curve}{' * d' if weights == 'cd' else ''}"
        self.value = self.distance.replace("y = ", "y = share * ")
        slope = "max(-1, min(1, square * gap))"
        self.derivative = f"{gap}; y = share * {slope} * {' * '.join('cde'[: len(weights) + 1])}"
        return [(), by_region(bottom[0])] if len(self.param.top) > 1 else [()]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        super().forward(program, bottom, top)
        if len(top) > 1:
            regions, channels, *extent = bottom[0].shape
            rows = (regions, channels, math.prod(extent))
            inputs = [blob.data.view(rows) for blob in bottom]
            y, constants = top[1].data.view(rows[::2]), {"square": self.constants["square"]}
            program.reduce(inputs, y, formula=self.distance, axes=(1,), constants=constants)


@register("SmoothL1LossOHEM")
class SmoothL1LossOHEM(SmoothL1Loss):
    """SmoothL1Loss with a knee at 1 and weights inside alone, divided as loss_param says."""

    bottoms = (2, 3)
    messages = ("loss_param",)

    def divisor(self, shape: Shape) -> float:
        return read_divisor(self, shape[0], shape[0] * math.prod(shape[2:]))


@register("SoftmaxWithLossOHEM")
class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """SoftmaxWithLoss; a third top: the cross-entropy of each region, 0 where it is ignored."""

    def setup(self, bottom: Shapes) -> Shapes:
        shape, axis = bottom[0], self.param.softmax_param.axis
        tops = super().setup(bottom)
        if axis % len(shape) != 1:
            self.fail("softmax_param.axis", f"is {axis}: classes must be along axis 1 here")
        return [*tops[:2], by_region(shape)]
