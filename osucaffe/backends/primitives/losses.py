"""The declarations of losses and scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..tensor import Tensor
from .recording import Primitive, Read, Reads, Write

FLT_MIN = 2.0**-126
"""Of C: the logarithm of a smaller probability is taken of this one, as in Caffe."""
MAX_LOSS = 126 * math.log(2)
"""Of one label, by that: 87.33."""


class ClassLoss(Primitive, abstract=True, kw_only=True):
    """What a loss over classes counts, and by what it is divided: see `softmax_loss`."""

    axis: int
    ignore: int | None
    normalization: str
    weights: Sequence[float] | None = None

    def check(self) -> None:
        if self.normalization not in ("FULL", "VALID", "BATCH_SIZE", "NONE"):
            raise ValueError(f"unknown normalization {self.normalization!r}")

    def fixed_normalizer(self, scores: Tensor) -> int | None:
        """What the loss is divided by (then at least 1); None: the number of labels that count."""
        if self.normalization == "VALID" and self.ignore is not None:
            return None
        positions = scores.count // max(1, scores.shape[self.axis])
        fixed = {"BATCH_SIZE": math.prod(scores.shape[: self.axis]), "NONE": 1}
        return fixed.get(self.normalization, positions)


class SoftmaxLoss(ClassLoss):
    """loss (scalar) = -sum of log softmax(x)[label] / normalizer; x (N, .., C, ..) on axis.
    Of each label at most MAX_LOSS, whose gradient does not know of this bound.

    label: floats that hold whole numbers, (N, ..) without the axis. ignore: label to skip.
    normalization: FULL (all positions), VALID (those not ignored), BATCH_SIZE (extents before
    axis), NONE (1); the normalizer is at least 1. A label outside 0..C-1 sets the loss to NaN.
    weights: of each class, by which its positions' losses are multiplied (not the normalizer).
    """

    x: Read
    label: Read
    probability: Write
    loss: Write


class SoftmaxLossBackward(ClassLoss):
    """dx = dloss * (probability - one at the label) / normalizer * the weight of the
    label's class; zero where ignored."""

    probability: Read
    label: Read
    dloss: Read
    dx: Write


class Accuracy(Primitive):
    """y = the share of positions whose label is among the top_k of x along axis.

    A label counts when fewer than top_k others are larger or equal (C++ Caffe 1.0). Where its score
    is NaN, so is y.
    per_class: (C,), the same for each class; 0 for a class without positions.
    """

    x: Read
    label: Read
    y: Write
    per_class: Write | None
    axis: int
    top_k: int
    ignore: int | None


class Total(Primitive):
    """y (scalar) = sum over xs of weight * sum(x): the loss of a net."""

    xs: Reads
    y: Write
    weights: Sequence[float]
