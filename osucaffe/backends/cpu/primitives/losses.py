"""The softmax loss, the accuracy, and the sums that make a net's loss, by NumPy."""

from __future__ import annotations

import math

import numpy as np

from ...primitives import losses as ops
from ...tensor import Run, Tensor
from ..registry import Context, direct, primitive
from .formulas import flat, planes
from .movement import Indices


class _Labels(Indices):
    """What the labels of (outer, classes, inner) scores say, in reused memory of (outer, inner).

    Call `look` first in a step; then `place` is the flat index of each label's score (some score
    where the label is out of range), `counted` is 1 where it is not to be ignored, else 0, and
    `wrong` is set where it is out of range and not ignored.
    """

    def __init__(
        self, ctx: Context, a: ops.SoftmaxLoss | ops.SoftmaxLossBackward | ops.Accuracy, x: Tensor
    ) -> None:
        self.ignore, self.classes = a.ignore, x.shape[a.axis]
        self.outer, self.inner = math.prod(x.shape[: a.axis]), math.prod(x.shape[a.axis + 1 :])
        shape = (self.outer, self.inner)
        super().__init__(ctx, a.label, shape, self.classes)
        self.place, self.counted = ctx.temporary(shape, "int64"), ctx.temporary(shape)
        weights = None if isinstance(a, ops.Accuracy) else a.weights
        self.fixed = None if isinstance(a, ops.Accuracy) else a.fixed_normalizer(x)
        self.weights = None if weights is None else np.array(weights, ctx.backend.dtype)
        if weights is not None:
            self.weight = ctx.temporary(shape)
        pixels = np.arange(self.inner)
        self._base = np.arange(self.outer)[:, None] * (self.classes * self.inner) + pixels

    def look(self) -> None:
        super().look()
        value, wrong, counted = self.values.array, self.wrong.array, self.counted.array
        if self.ignore is None:
            counted.fill(1)
        else:
            np.not_equal(value, self.ignore, out=counted, casting="unsafe")
            np.logical_and(wrong, counted, out=wrong)
        np.clip(value, 0, self.classes - 1, out=value)
        np.multiply(value, self.inner, out=self.place.array)
        np.add(self.place.array, self._base, out=self.place.array)

    def weigh(self, values: np.ndarray) -> None:
        """Multiply values by the weights of the labels' classes."""
        if self.weights is not None:
            np.take(self.weights, self.values.array, out=self.weight.array, mode="clip")
            values *= self.weight.array

    def normalizer(self) -> float:
        """What the loss is divided by, at least 1."""
        return max(float(self.counted.array.sum()) if self.fixed is None else self.fixed, 1)


@primitive()
def softmax_loss(ctx: Context, a: ops.SoftmaxLoss) -> Run:
    labels = _Labels(ctx, a, a.x)
    shape = (labels.outer, 1, labels.inner)
    largest, total = ctx.temporary(shape), ctx.temporary(shape)
    score = ctx.temporary((labels.outer, labels.inner))

    def step() -> None:
        source, out = planes(a.x, a.axis), planes(a.probability, a.axis)
        labels.look()
        # mode "clip" keeps NumPy from making a copy first
        np.take(flat(a.x), labels.place.array, out=score.array, mode="clip")
        np.max(source, axis=1, keepdims=True, out=largest.array)
        np.subtract(source, largest.array, out=out)
        np.exp(out, out=out)
        np.sum(out, axis=1, keepdims=True, out=total.array)
        np.divide(out, total.array, out=out)
        # log softmax = score - largest - log(total)
        np.log(total.array, out=total.array)
        score.array -= largest.array[:, 0]
        score.array -= total.array[:, 0]
        np.maximum(score.array, -ops.MAX_LOSS, out=score.array)
        score.array *= labels.counted.array
        divisor = labels.normalizer()
        labels.weigh(score.array)
        value = -float(score.array.sum(dtype=np.float64)) / divisor
        a.loss.array.fill(np.nan if labels.wrong.array.any() else value)

    return step


@primitive()
def softmax_loss_backward(ctx: Context, a: ops.SoftmaxLossBackward) -> Run:
    labels = _Labels(ctx, a, a.probability)
    score = ctx.temporary((labels.outer, labels.inner))

    def step() -> None:
        labels.look()
        weight = labels.counted.array
        weight *= a.dloss.array.item() / labels.normalizer()
        labels.weigh(weight)
        np.multiply(planes(a.probability, a.axis), weight[:, None], out=planes(a.dx, a.axis))
        np.take(flat(a.dx), labels.place.array, out=score.array, mode="clip")
        score.array -= weight
        np.put(flat(a.dx), labels.place.array, score.array)

    return step


@primitive()
def accuracy(ctx: Context, a: ops.Accuracy) -> Run:
    labels = _Labels(ctx, a, a.x)
    score = ctx.temporary((labels.outer, labels.inner))
    reaching = ctx.temporary((labels.outer, labels.classes, labels.inner), "bool")
    rivals = ctx.temporary((labels.outer, labels.inner), "int64")
    nothing = ctx.temporary((labels.outer, labels.inner), "bool")
    totals = ctx.temporary((labels.classes,))

    def step() -> None:
        labels.look()
        np.take(flat(a.x), labels.place.array, out=score.array, mode="clip")
        np.greater_equal(planes(a.x, a.axis), score.array[:, None], out=reaching.array)
        np.sum(reaching.array, axis=1, out=rivals.array)  # the label itself is one of them
        counted = labels.counted.array
        count = float(counted.sum(dtype=np.float64))
        # A label out of range is not a hit.
        np.isnan(score.array, out=nothing.array)
        np.less_equal(rivals.array, a.top_k, out=score.array, casting="unsafe")
        np.copyto(score.array, np.nan, where=nothing.array)
        np.copyto(score.array, 0, where=counted == 0)
        np.copyto(score.array, 0, where=labels.wrong.array)
        a.y.array.fill(float(score.array.sum(dtype=np.float64)) / max(count, 1))
        if a.per_class is not None:
            totals.array.fill(0)
            np.copyto(counted, 0, where=labels.wrong.array)  # nor is it of any class
            np.add.at(totals.array, labels.values.array, counted)
            np.maximum(totals.array, 1, out=totals.array)
            hits = flat(a.per_class)
            hits.fill(0)
            np.add.at(hits, labels.values.array, score.array)
            np.divide(hits, totals.array, out=hits)

    return step


@direct()
def total(ctx: Context, a: ops.Total) -> None:
    sums = [float(flat(x).sum(dtype=np.float64)) for x in a.xs]
    a.y.array.fill(sum(weight * each for weight, each in zip(a.weights, sums, strict=True)))
