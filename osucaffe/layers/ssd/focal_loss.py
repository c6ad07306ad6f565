"""Owns FocalLoss: a cross-entropy in which what is classified well counts little."""

from __future__ import annotations

import math

from ...backends.primitives.losses import FLT_MIN
from ..base import Blobs, Flags, Program, Shapes, Tensor, register
from ..core.cross_entropy import Normalized
from ..core.softmax import check_labels, read_ignored, read_normalization


@register("FocalLoss")
class FocalLoss(Normalized):
    """-alpha * (1 - p)^gamma * log p of each label's softmax p (Lin et al. 2017).

    A second top: the probabilities.
    """

    tops = (1, 2)
    messages = ("focal_loss_param", "softmax_param", "loss_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.focal_loss_param, bottom[0]
        if param.Type.Name(param.type) != "ORIGIN":
            self.fail("focal_loss_param.type", "must be ORIGIN: the other forms are not supported")
        if param.gamma < 0:
            self.fail("focal_loss_param.gamma", f"is {param.gamma:g}, but must be at least 0")
        self.along = self.axis(self.param.softmax_param.axis, len(shape), "softmax_param.axis")
        self.ignore = read_ignored(self.param.loss_param)
        check_labels(self, bottom, self.along, self.ignore)
        self.normalization = read_normalization(self)
        self.constants = {"alpha": param.alpha, "gamma": param.gamma}
        outer, inner = math.prod(shape[: self.along]), math.prod(shape[self.along + 1 :])
        self.rows, self.places = (outer, shape[self.along], inner), (outer, 1, inner)
        return [(), shape]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, label = bottom[0].data, bottom[1].data.view(self.places)
        probability = top[1].data if len(top) > 1 else self.tensor(x.shape)
        program.softmax(x, probability, axis=self.along)
        self.probability = probability.view(self.rows)
        self.classes, self.own = self.tensor((1, self.rows[1], 1)), self.tensor(self.places)
        program.positions(self.classes)
        inputs = [self.probability, label, self.classes]
        program.reduce(inputs, self.own, formula="y = where(b == c, a, 0)", axes=(1,))
        self.divisor = self.count(
            program, bottom[1].data, self.normalization, self.ignore, self.rows[0]
        ).view((1, 1, 1))
        value = f"-alpha * (1 - a) ** gamma * log(max(a, {FLT_MIN})) / c"
        program.reduce(
            [self.own, label, self.divisor], top[0].data, axes=(0, 1, 2),
            formula=f"y = {self.counted('b', self.ignore)} * {value}", constants=self.constants,
        )  # fmt: skip

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        label = bottom[1].data.view(self.places)
        slope = self.tensor(self.places)  # of the loss to the logarithm of p
        ends: list[Tensor] = [self.divisor, top[0].diff.view((1, 1, 1))]
        program.broadcast(
            [self.own, label, *ends], [slope],
            formula="far = max(1 - a, 1e-30); "
            f"rise = gamma * far ** (gamma - 1) * a * log(max(a, {FLT_MIN})) - far ** gamma; "
            f"y = {self.counted('b', self.ignore)} * alpha * rise * d / c",
            constants=self.constants,
        )  # fmt: skip
        program.broadcast(
            [self.probability, label, self.classes, slope], [bottom[0].diff.view(self.rows)],
            formula="y = d * (where(b == c, 1, 0) - a)",
        )  # fmt: skip
