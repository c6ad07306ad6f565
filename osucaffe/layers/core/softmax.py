"""Owns Softmax and the classification loss and score that stand on it."""

from __future__ import annotations

import math
from typing import Any

from ...backends.primitives.losses import FLT_MIN
from ..base import Blobs, Flags, Layer, Program, Shapes, Tensor, register


def check_labels(layer: Layer, bottom: Shapes, axis: int, ignored: int | None = None) -> None:
    """Refuse labels that are not one for each position of bottom[0] outside `axis`, and declare
    that those are taken which name one of the classes along it."""
    scores, labels = bottom[0], bottom[1]
    positions = math.prod(scores[:axis] + scores[axis + 1 :])
    if math.prod(labels) != positions:
        layer.fail(
            "bottom[1]",
            f"has shape {labels}: scores of shape {scores} with classes along axis {axis} need "
            f"{positions} labels",
        )
    layer.takes_labels(1, scores[axis], ignored)


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
    if len(param.class_weighting) != classes:
        layer.fail(
            "loss_param.class_weighting",
            f"is given {len(param.class_weighting)} times: weight_by_label_freqs needs one weight "
            f"for each of {classes} classes",
        )
    return tuple(param.class_weighting)


def pre_fixed(layer: Layer) -> float | None:
    """What loss_param divides the loss by, where it says so itself (R-FCN's PRE_FIXED)."""
    if read_normalization(layer) != "PRE_FIXED":
        return None
    fixed = layer.param.loss_param.pre_fixed_normalizer
    if fixed <= 0:
        layer.fail("loss_param.pre_fixed_normalizer", f"is {fixed:g}, but must be above 0")
    return float(fixed)


def read_ignored(param: Any) -> int | None:
    """The label to skip, from a message that has `ignore_label`."""
    return param.ignore_label if param.HasField("ignore_label") else None


@register("Softmax")
class Softmax(Layer):
    """Probabilities along an axis: exp(x) divided by its sum."""

    in_place = True

    def setup(self, bottom: Shapes) -> Shapes:
        axis = self.param.softmax_param.axis
        self.axis_index = self.axis(axis, len(bottom[0]), "softmax_param.axis")
        return bottom

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.softmax(bottom[0].data, top[0].data, axis=self.axis_index)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        y, dy, dx = top[0].data, top[0].diff, bottom[0].diff
        program.softmax_backward(y, dy, dx, axis=self.axis_index)


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(Layer):
    """Cross-entropy of softmax probabilities with labels (then: probabilities; that of each label).

    The third top is R-FCN's and Cascade R-CNN's; it is 0 where the label is ignored.
    """

    bottoms = (2, 2)
    tops = (1, 3)
    loss = True
    messages = ("softmax_param", "loss_param")
    no_gradient = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        axis = self.axis(self.param.softmax_param.axis, len(bottom[0]), "softmax_param.axis")
        ignored = read_ignored(self.param.loss_param)
        check_labels(self, bottom, axis, ignored)
        self.fixed = pre_fixed(self)
        self.settings: dict[str, Any] = {
            "axis": axis,
            "ignore": ignored,
            "normalization": "NONE" if self.fixed else read_normalization(self),
            "weights": read_class_weights(self, bottom[0][axis]),
        }
        shape = bottom[0]
        self.rows = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        return [(), shape, bottom[1]]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, label = bottom[0].data, bottom[1].data
        self.probability = top[1].data if len(top) > 1 else self.tensor(x.shape, flexible=True)
        loss = self.tensor(()) if self.fixed else top[0].data
        program.softmax_loss(x, label, self.probability, loss, **self.settings)
        self._divide(program, loss, top[0].data)
        if len(top) > 2:
            self._tell_each(program, label, top[2].data)

    def _tell_each(self, program: Program, label: Tensor, each: Tensor) -> None:
        """The cross-entropy of each label, with no weights."""
        outer, count, inner = self.rows
        classes = self.tensor((1, count, 1))
        program.positions(classes)
        ignored = self.settings["ignore"]
        skip = "" if ignored is None else f" * where(b == {ignored}, 0, 1)"
        program.reduce(
            [self.probability.view(self.rows), label.view((outer, 1, inner)), classes],
            each.view((outer, inner)), axes=(1,),
            formula=f"y = where(b == c, -log(max(a, {FLT_MIN})), 0){skip}",
        )  # fmt: skip

    def _divide(self, program: Program, total: Tensor, share: Tensor) -> None:
        """The share of a total that counts, where the net says by what to divide."""
        if self.fixed:
            factor = {"factor": 1 / self.fixed}
            program.elementwise([total], [share], formula="y = factor * a", constants=factor)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        label, dx = bottom[1].data, bottom[0].diff
        dloss = self.tensor(()) if self.fixed else top[0].diff
        self._divide(program, top[0].diff, dloss)
        program.softmax_loss_backward(self.probability, label, dloss, dx, **self.settings)


@register("Accuracy")
class Accuracy(Layer):
    """The share of labels among the top_k scores (a second top: the same for each class)."""

    bottoms = (2, 2)
    tops = (1, 2)
    no_gradient = (0, 1)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.accuracy_param
        axis = self.axis(param.axis, len(bottom[0]), "accuracy_param.axis")
        ignored = read_ignored(param)
        check_labels(self, bottom, axis, ignored)
        classes = bottom[0][axis]
        if not 1 <= param.top_k <= classes:
            self.fail(
                "accuracy_param.top_k", f"is {param.top_k}: it must be 1 .. {classes} classes"
            )
        self.settings: dict[str, Any] = {
            "axis": axis,
            "top_k": param.top_k,
            "ignore": ignored,
        }
        return [(), (classes,)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        per_class = top[1].data if len(top) > 1 else None
        x, label, y = bottom[0].data, bottom[1].data, top[0].data
        program.accuracy(x, label, y, per_class, **self.settings)
