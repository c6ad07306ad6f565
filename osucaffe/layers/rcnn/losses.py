"""Owns SmoothL1Loss (SSD's, and Fast R-CNN's with a knee and weights), and R-FCN's losses.

The latter tell the loss of each region beside the sum: BoxAnnotatorOHEM chooses regions by these.
"""

from __future__ import annotations

import math

from ..base import Blobs, Flags, Program, Shapes, register
from ..core.cross_entropy import SoftmaxWithLoss
from ..core.losses import Loss, by_region, pre_fixed, read_normalization


@register("SmoothL1Loss")
class SmoothL1Loss(Loss):
    """The batch's mean of distances, squared below 1 / sigma^2 (bottoms 2, 3: weights of each).

    A second top tells the distance of each region (Cascade R-CNN).
    """

    bottoms = (2, 4)
    tops = (1, 2)
    no_gradient = (2, 3)

    def setup(self, bottom: Shapes) -> Shapes:
        for pair in ([bottom[0], other] for other in bottom[1:]):
            self.check_counts_alike(pair)
        sigma = self.param.smooth_l1_loss_param.sigma
        if sigma <= 0:
            self.fail("smooth_l1_loss_param.sigma", f"is {sigma:g}, but must be above 0")
        self.constants = {"square": sigma * sigma, "share": 1 / bottom[0][0]}
        # With weights, c is the one inside and d the one outside; what follows is the gradient.
        weights = "cd"[: len(bottom) - 2]
        gap = "gap = c * (a - b)" if weights else "gap = a - b"
        curve = "where(abs(gap) * square < 1, 0.5 * square * gap * gap, abs(gap) - 0.5 / square)"
        self.each = f"{gap}; y = {curve}{' * d' if weights == 'cd' else ''}"
        slope = "max(-1, min(1, square * gap))"
        self.derivative = f"{gap}; y = share * {slope} * {' * '.join('cde'[: len(weights) + 1])}"
        return [(), by_region(bottom[0])] if len(self.param.top) > 1 else [()]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        inputs = [blob.data.view((blob.data.count,)) for blob in bottom]
        value = self.each.replace("y = ", "y = share * ")
        program.reduce(inputs, top[0].data, formula=value, axes=(0,), constants=self.constants)
        if len(top) > 1:
            regions, channels, *extent = bottom[0].shape
            rows = (regions, channels, math.prod(extent))
            inputs = [blob.data.view(rows) for blob in bottom]
            each, constants = top[1].data.view(rows[::2]), {"square": self.constants["square"]}
            program.reduce(inputs, each, formula=self.each, axes=(1,), constants=constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        a, b, *weights = (blob.data.view((blob.data.count,)) for blob in bottom)
        ends = [*weights, top[0].diff.view((1,))]
        # By symmetry the second bottom's gradient is the first one's with the two exchanged.
        for blob, pair, wanted in zip(bottom, ([a, b], [b, a]), propagate_down, strict=False):
            if wanted:
                program.broadcast(
                    [*pair, *ends], [blob.diff.view(a.shape)],
                    formula=self.derivative, constants=self.constants,
                )  # fmt: skip


@register("SmoothL1LossOHEM")
class SmoothL1LossOHEM(Loss):
    """Distances, squared below 1, times weights (bottom 2); a second top: of each region."""

    bottoms = (2, 3)
    tops = (1, 2)
    messages = ("loss_param",)
    no_gradient = (2,)

    def setup(self, bottom: Shapes) -> Shapes:
        for other in bottom[1:]:
            self.check_counts_alike([bottom[0], other])
        shape = bottom[0]
        regions, inner = shape[0], math.prod(shape[2:])
        self.rows = (regions, math.prod(shape[1:2]), inner)
        normalization = read_normalization(self)
        counts = {"BATCH_SIZE": regions, "NONE": 1}
        self.constants = {
            "share": 1 / (pre_fixed(self) or counts.get(normalization, regions * inner))
        }
        self.gap = "gap = c * (a - b)" if len(bottom) > 2 else "gap = a - b"
        return [(), by_region(shape)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        inputs = [blob.data.view(self.rows) for blob in bottom]
        curve = f"{self.gap}; y = where(abs(gap) < 1, 0.5 * gap * gap, abs(gap) - 0.5)"
        if len(top) > 1:
            each = top[1].data.view((self.rows[0], self.rows[2]))
            program.reduce(inputs, each, formula=curve, axes=(1,))
        total = curve.replace("y = ", "y = share * ")
        program.reduce(inputs, top[0].data, formula=total, axes=(0, 1, 2), constants=self.constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        a, b, *weights = (blob.data.view(self.rows) for blob in bottom)
        names = "cd" if weights else "1c"
        formula = f"{self.gap}; y = share * max(-1, min(1, gap)) * {names[0]} * {names[1]}"
        # By symmetry the second bottom's gradient is the first one's with the two exchanged.
        for blob, pair, wanted in zip(bottom, ([a, b], [b, a]), propagate_down, strict=False):
            if wanted:
                program.broadcast(
                    [*pair, *weights, top[0].diff.view((1, 1, 1))], [blob.diff.view(self.rows)],
                    formula=formula, constants=self.constants,
                )  # fmt: skip


@register("SoftmaxWithLossOHEM")
class SoftmaxWithLossOHEM(SoftmaxWithLoss):
    """SoftmaxWithLoss; a third top: the cross-entropy of each region, 0 where it is ignored."""

    def setup(self, bottom: Shapes) -> Shapes:
        shape, axis = bottom[0], self.param.softmax_param.axis
        tops = super().setup(bottom)
        if axis % len(shape) != 1:
            self.fail("softmax_param.axis", f"is {axis}: classes must be along axis 1 here")
        return [*tops[:2], by_region(shape)]
