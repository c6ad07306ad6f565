"""The losses of distances and margins, put together from general primitives."""

from __future__ import annotations

import math
from typing import Any

from ..base import Blobs, Flags, Layer, Program, Shape, Shapes, Tensor, register


def take_class_labels(layer: Layer, bottom: Shapes, axis: int, ignored: int | None = None) -> Shape:
    """Refuse labels that are not one for each position of bottom[0] outside `axis`, and declare
    that those are taken which name one of the classes along it.

    Returns bottom[0]'s shape with the axes before and after this one joined.
    """
    scores = bottom[0]
    outer, inner = math.prod(scores[:axis]), math.prod(scores[axis + 1 :])
    like = f", one for each position of {scores} outside of axis {axis}"
    layer.take_labels(bottom, outer * inner, scores[axis], ignored, like)
    return outer, scores[axis], inner


def read_normalization(layer: Layer, default: str = "VALID") -> str:
    """FULL, VALID, BATCH_SIZE, NONE or PRE_FIXED from loss_param, or of the old `normalize`."""
    param = layer.param.loss_param
    if param.HasField("normalization"):
        return param.NormalizationMode.Name(param.normalization)
    if param.HasField("normalize"):
        return "VALID" if param.normalize else "BATCH_SIZE"
    return default


def read_class_weights(layer: Layer, classes: int) -> tuple[float, ...] | None:
    """SegNet's weights of the classes, from loss_param; None: all count alike."""
    param = layer.param.loss_param
    if not param.weight_by_label_freqs:
        return None
    if (count := len(param.class_weighting)) != classes:
        text = f"weight_by_label_freqs needs one weight for each of {classes} classes"
        layer.fail("loss_param.class_weighting", f"is given {count} times: {text}")
    return tuple(param.class_weighting)


def pre_fixed(layer: Layer) -> float | None:
    """What loss_param divides the loss by, where it says so itself (R-FCN's PRE_FIXED)."""
    if read_normalization(layer) != "PRE_FIXED":
        return None
    fixed = layer.param.loss_param.pre_fixed_normalizer
    if fixed <= 0:
        layer.fail("loss_param.pre_fixed_normalizer", f"is {fixed:g}, but must be above 0")
    return float(fixed)


def read_divisor(layer: Layer, batch: int, every: int, default: str = "VALID") -> float:
    """What a loss is divided by that ignores nothing, of that many numbers in so many items."""
    counts = {"BATCH_SIZE": batch, "NONE": 1}
    return pre_fixed(layer) or counts.get(read_normalization(layer, default), every)


def read_ignored(param: Any) -> int | None:
    """The label to skip, from a message that has `ignore_label`."""
    return param.ignore_label if param.HasField("ignore_label") else None


def by_region(shape: Shape) -> Shape:
    """The shape of a top with one number for each region (and place in it)."""
    regions, _, *extent = shape
    return (regions, 1, *(*extent, 1, 1)[: max(2, len(extent))])


class Loss(Layer):
    """A layer with a scalar loss as its top, that compares bottom[0] with bottom[1]."""

    bottoms = (2, 2)
    loss = True

    def check_batches(self, bottom: Shapes) -> None:
        """Refuse bottoms that are not of one batch."""
        for i, shape in enumerate(bottom):
            if not shape or shape[0] != bottom[0][0]:
                self.fail(f"bottom[{i}]", f"{shape} is not of the batch of bottom[0], {bottom[0]}")

    def check_counts_alike(self, bottom: Shapes) -> None:
        """Refuse bottoms that have another number of elements an item."""
        self.check_batches(bottom)
        self.check_count(bottom, 1, math.prod(bottom[0]), like=f", as bottom[0], {bottom[0]}")


class Pairs(Loss):
    """A loss to which its first two bottoms, seen as of one shape, are alike: by default a mean
    over pairs of items."""

    shape: Shape
    constants: dict[str, float]

    def setup(self, bottom: Shapes) -> Shapes:
        self.check_counts_alike(bottom)
        self.shape = (bottom[0][0], math.prod(bottom[0][1:]))
        self.constants = {"share": 1 / bottom[0][0]}
        return [()]

    def backward_pair(
        self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs,
        others: list[Tensor], formula: str,
    ) -> None:  # fmt: skip
        """Both gradients: y from a and b, the two, then the others and the loss's gradient."""
        a, b = (blob.data.view(self.shape) for blob in bottom[:2])
        others = [*others, top[0].diff.view((1,) * len(self.shape))]
        # By symmetry the second bottom's gradient is the first one's with the two exchanged.
        for blob, pair, down in zip(bottom, ([a, b], [b, a]), propagate_down, strict=False):
            if down:
                program.broadcast(
                    [*pair, *others], [blob.diff.view(self.shape)],
                    formula=formula, constants=self.constants,
                )  # fmt: skip


class Differences(Pairs):
    """A sum over the elements of a function of their differences; both bottoms get gradients.

    value, derivative: y from a and b, those of further bottoms, and the loss's gradient.
    """

    value: str
    derivative: str

    def setup(self, bottom: Shapes) -> Shapes:
        for i, other in enumerate(bottom[1:], 1):
            self.check_batches([bottom[0], other])
            self.check_count(bottom, i, math.prod(bottom[0]), like=f", as bottom[0], {bottom[0]}")
        self.shape = (math.prod(bottom[0]),)
        self.constants = {"share": 1 / self.divisor(bottom[0])}
        return [()]

    def divisor(self, shape: Shape) -> float:
        """What the sum is divided by."""
        return shape[0]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        inputs, y = [blob.data.view(self.shape) for blob in bottom], top[0].data
        program.reduce(inputs, y, formula=self.value, axes=(0,), constants=self.constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        others = [blob.data.view(self.shape) for blob in bottom[2:]]
        self.backward_pair(program, top, propagate_down, bottom, others, self.derivative)


@register("EuclideanLoss")
class EuclideanLoss(Differences):
    """Half the mean over the batch of the squared distance of the two bottoms."""

    value = "y = 0.5 * share * (a - b) * (a - b)"
    derivative = "y = c * share * (a - b)"


@register("L1Loss")
class L1Loss(Differences):
    """The mean over the batch (normalization: FULL, over all elements) of the absolute errors."""

    messages = ("loss_param",)
    value = "y = share * abs(a - b)"
    derivative = "y = c * share * sign(a - b)"

    def divisor(self, shape: Shape) -> float:
        return read_divisor(self, shape[0], math.prod(shape), default="BATCH_SIZE")


@register("JSDLoss")
class JSDLoss(Differences):
    """The Jensen-Shannon divergence of bottom 0 and a target, the mean over the batch.

    A number of 1e-5 or less counts as 0, as in the fork's jsd_loss_layer.cpp.
    """

    no_gradient = (1,)
    value = (
        "low = 1e-5; p = max(a, low); q = max(b, low);"
        "both = p * log(2 * p) + q * log(2 * q) - (p + q) * log(p + q);"
        "y = 0.5 * share * where(a > low, where(b > low, both, a * log(2)), b * log(2))"
    )
    derivative = (
        "y = 0.5 * c * share * where(b > 1e-5, log(2 * max(a, 1e-30) / (max(a, 0) + b)), log(2))"
    )


@register("DiceCoefLoss")
class DiceCoefLoss(Pairs):
    """1 less the mean over the items of (2 a b + 1) / (a a + b b + 1), dot products (V-Net)."""

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        inputs = [blob.data.view(self.shape) for blob in bottom]
        self.sums = [self.tensor((self.shape[0], 1)) for _ in range(2)]
        for total, formula in zip(self.sums, ("y = 2 * a * b", "y = a * a + b * b"), strict=True):
            program.reduce(inputs, total, formula=formula, axes=(1,))
        formula = "y = share * (1 - (a + 1) / (b + 1))"
        constants = self.constants
        program.reduce(self.sums, top[0].data, formula=formula, axes=(0, 1), constants=constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        formula = "y = 2 * e * share * (a * (c + 1) / (d + 1) - b) / (d + 1)"
        self.backward_pair(program, top, propagate_down, bottom, self.sums, formula)


@register("ContrastiveLoss")
class ContrastiveLoss(Pairs):
    """Draws pairs together that bottom[2] calls similar, others apart (Hadsell et al. 2006)."""

    bottoms = (3, 3)
    no_gradient = (2,)

    def setup(self, bottom: Shapes) -> Shapes:
        tops, param = super().setup(bottom), self.param.contrastive_loss_param
        self.check_count(bottom, 2, self.shape[0], like=", one for each of the pairs")
        self.legacy = param.legacy_version
        self.constants["margin"] = param.margin
        return tops

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        a, b = (blob.data.view(self.shape) for blob in bottom[:2])
        column = (self.shape[0], 1)
        self.squared, self.similar = self.tensor(column), bottom[2].data.view(column)
        program.reduce([a, b], self.squared, formula="y = (a - b) * (a - b)", axes=(1,))
        apart = "gap = max(margin - sqrt(a), 0); apart = gap * gap"
        if self.legacy:
            apart = "apart = max(margin - a, 0)"
        formula = f"{apart}; y = 0.5 * share * where(b != 0, a, apart)"
        inputs = [self.squared, self.similar]
        program.reduce(inputs, top[0].data, formula=formula, axes=(0, 1), constants=self.constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        # As Caffe does, which keeps the distance off zero.
        apart = "gap = margin - sqrt(c); apart = -gap / (sqrt(c) + 0.0001)"
        if self.legacy:
            apart = "gap = margin - c; apart = -1"
        pull = f"{apart}; pull = where(d != 0, 1, where(gap > 0, apart, 0))"
        formula = f"{pull}; y = e * share * pull * (a - b)"
        others = [self.squared, self.similar]
        self.backward_pair(program, top, propagate_down, bottom, others, formula)


class Classification(Loss):
    """A loss of scores (N, K) and labels (N), with formulas that go over both and over classes.

    value, derivative: of y from a = score, b = label, c = class (0 .. K - 1), d = 1 or, for a
    label out of range, NaN; derivative from e = the loss's gradient too.
    """

    no_gradient = (1,)
    value: str
    derivative: str

    def setup(self, bottom: Shapes) -> Shapes:
        self.check_batches(bottom)
        items = bottom[0][0]
        self.scores = (items, math.prod(bottom[0][1:]))
        self.take_labels(bottom, *self.scores)
        self.constants = {"share": 1 / items}
        return [()]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        items, classes = self.scores
        label, ones = bottom[1].data.view((items, 1)), self.tensor((classes, 1))
        position, valid = self.indices(program, (1, classes)), self.tensor((items, 1))
        program.fill(ones, value=1.0)
        program.gather(ones, bottom[1].data.view((items,)), valid)
        self.inputs = [bottom[0].data.view(self.scores), label, position, valid]
        y, constants = top[0].data, self.constants
        program.reduce(self.inputs, y, formula=self.value, axes=(0, 1), constants=constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.broadcast(
            [*self.inputs, top[0].diff.view((1, 1))], [bottom[0].diff.view(self.scores)],
            formula=self.derivative, constants=self.constants,
        )  # fmt: skip


@register("HingeLoss")
class HingeLoss(Classification):
    """One against all: max(0, 1 - x) of the label's score, max(0, 1 + x) of others, or squared."""

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.hinge_loss_param
        margin = "side = where(b == c, -1, 1); margin = max(0, 1 + side * a)"
        if param.Norm.Name(param.norm) == "L1":
            self.value = f"{margin}; y = d * share * margin"
            self.derivative = f"{margin}; y = e * share * side * where(margin > 0, 1, 0)"
        else:
            self.value = f"{margin}; y = d * share * margin * margin"
            self.derivative = f"{margin}; y = 2 * e * share * side * margin"
        return super().setup(bottom)


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(Classification):
    """The mean of -log of the probability given to each label."""

    value = "y = d * where(b == c, -share * log(max(a, 1e-20)), 0)"
    derivative = "y = where(b == c, -e * share / max(a, 1e-20), 0)"
