"""Softmax, the losses by cross-entropy, and Accuracy."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from ...backends.primitives.losses import FLT_MIN
from ...errors import UserError
from ...proto import BlobProto, blob_to_array
from ...proto.files import read_message
from ..base import Blobs, Flags, Layer, Program, Shapes, Tensor, register
from .losses import (
    Loss,
    pre_fixed,
    read_class_weights,
    read_ignored,
    read_normalization,
    take_class_labels,
)

log = logging.getLogger("osucaffe")


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
        self.ignored = read_ignored(self.param.loss_param)
        self.rows = take_class_labels(self, bottom, axis, self.ignored)
        self.fixed = pre_fixed(self)
        self.settings: dict[str, Any] = {
            "axis": axis,
            "ignore": self.ignored,
            "normalization": "NONE" if self.fixed else read_normalization(self),
            "weights": read_class_weights(self, bottom[0][axis]),
        }
        return [(), *bottom]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, label = bottom[0].data, bottom[1].data
        self.probability = top[1].data if len(top) > 1 else self.tensor(x.shape, flexible=True)
        loss = self.tensor(()) if self.fixed else top[0].data
        program.softmax_loss(x, label, self.probability, loss, **self.settings)
        self._divide(program, loss, top[0].data)
        if len(top) > 2:
            self._label_losses(program, label, top[2].data)

    def _label_losses(self, program: Program, label: Tensor, y: Tensor) -> None:
        """The cross-entropy of each label, with no weights."""
        outer, count, inner = self.rows
        classes = self.indices(program, (1, count, 1))
        skip = "" if self.ignored is None else f" * where(b == {self.ignored}, 0, 1)"
        program.reduce(
            [self.probability.view(self.rows), label.view((outer, 1, inner)), classes],
            y.view((outer, inner)), axes=(1,),
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
    """The share of labels among the top_k scores (a second top: the same for each class).

    With min_is_better the least scores, of distances, are the best. A label that names no class is
    a miss, and counts for no class.
    """

    bottoms = (2, 2)
    tops = (1, 2)
    no_gradient = (0, 1)
    _warned = False

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.accuracy_param
        axis = self.axis(param.axis, len(bottom[0]), "accuracy_param.axis")
        ignored = read_ignored(param)
        _, classes, _ = take_class_labels(self, bottom, axis, ignored)
        self.label_bottoms[1] = self.label_bottoms[1]._replace(others=self._miss)
        if not 1 <= param.top_k <= classes:
            self.fail("accuracy_param.top_k", f"is {param.top_k}: it must be 1 .. {classes}")
        self.settings: dict[str, Any] = {"axis": axis, "top_k": param.top_k, "ignore": ignored}
        return [(), (classes,)]

    def _miss(self, label: float) -> None:
        """Tell once that there are labels that name no class."""
        if not self._warned:
            self._warned = True
            _, classes, *_ = self.label_bottoms[1]
            log.warning(
                "%s: label %g names none of its %d classes: such labels count as wrong. "
                "accuracy_param { ignore_label: %.0f } leaves it out",
                *(self.title, label, classes, label),
            )

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        per_class = top[1].data if len(top) > 1 else None
        x, label, y = bottom[0].data, bottom[1].data, top[0].data
        if self.param.accuracy_param.min_is_better:
            x, distance = self.tensor(x.shape), x
            program.elementwise([distance], [x], formula="y = -a")
        program.accuracy(x, label, y, per_class, **self.settings)


class Normalized(Loss):
    """A loss that may ignore a label, and that divides by a count of what it did not ignore."""

    no_gradient: tuple[int, ...] = (1,)

    def read_counting(self, default: str = "VALID") -> None:
        """Read which label is ignored, and the normalization."""
        self.ignore = read_ignored(self.param.loss_param)
        self.normalization = read_normalization(self, default)

    def count(self, program: Program, label: Tensor, outer: int) -> Tensor:
        """What the loss is divided by, at least 1: a scalar. outer: the items of the batch."""
        count = self.tensor(())
        if self.normalization == "VALID" and self.ignore is not None:
            label = label.view((label.count,))
            program.reduce([label], count, formula=f"y = {self.counted('a')}", axes=(0,))
            program.elementwise([count], [count], formula="y = max(a, 1)")
        else:
            counts = {"BATCH_SIZE": outer, "NONE": 1}
            default = max(1, counts.get(self.normalization, label.count))
            program.fill(count, value=pre_fixed(self) or default)
        return count

    def counted(self, name: str) -> str:
        """The formula of 1 where a label counts, 0 where it is ignored (its fraction cut off)."""
        if self.ignore is None:
            return "1"
        return f"where(floor(abs({name})) * sign({name}) == {self.ignore}, 0, 1)"


class OfSoftmax(Normalized):
    """A loss of labels and softmax probabilities along an axis. A second top: these."""

    tops = (1, 2)

    def read_scores(self, bottom: Shapes, axis: int, field: str) -> None:
        """Read the axis of the classes, and what counts; set `rows`, the scores' shape."""
        self.along = self.axis(axis, len(bottom[0]), field)
        self.read_counting()
        self.rows = take_class_labels(self, bottom, self.along, self.ignore)
        self.positions = (self.rows[0], 1, self.rows[2])

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        """Set `probability`, `targets` (the labels) and `divisor`, and compute their loss."""
        x, label = bottom[0].data, bottom[1].data
        probability = top[1].data if len(top) > 1 else self.tensor(x.shape)
        program.softmax(x, probability, axis=self.along)
        self.probability, self.targets = probability.view(self.rows), label.view(self.positions)
        self.divisor = self.count(program, label, self.rows[0]).view((1, 1, 1))
        self.forward_loss(program, bottom, top[0].data)

    def forward_loss(self, program: Program, bottom: Blobs, loss: Tensor) -> None:
        raise NotImplementedError


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(Normalized):
    """Cross-entropy of sigmoid(x) with targets between 0 and 1, element by element.

    class_balance (HED): only targets of 0 and 1 count, the 1s by the share of 0s among both in
    their item, the 0s by class_balance times the share of 1s.
    """

    messages = ("loss_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        self.check_counts_alike(bottom)
        self.read_counting(default="BATCH_SIZE")
        self.balance = self.param.loss_param.class_balance
        if self.balance < 0:
            self.fail("loss_param.class_balance", f"is {self.balance:g}: it must be at least 0")
        items, *extents = bottom[0] if self.balance else (math.prod(bottom[0]),)
        self.shape = (items, math.prod(extents)) if self.balance else (items,)
        return [()]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, target = (blob.data.view(self.shape) for blob in bottom)
        divisor = self.count(program, target, bottom[0].shape[0])
        self.inputs = [x, target, divisor.view((1,) * len(self.shape))]
        self.weight = f"{self.counted('b')} / c"
        if self.balance:
            for value in (1, 0):
                count = self.tensor((self.shape[0], 1))
                formula = f"y = where(a == {value}, 1, 0)"
                program.reduce([target], count, formula=formula, axes=(1,))
                self.inputs.append(count)
            share = f"where(b == 1, e, where(b == 0, {self.balance!r} * d, 0)) / max(d + e, 1)"
            self.weight += f" * {share}"
        formula = f"y = {self.weight} * (max(a, 0) - a * b + log1p(exp(-abs(a))))"
        axes = tuple(range(len(self.shape)))
        program.reduce(self.inputs, top[0].data, formula=formula, axes=axes)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        inputs = [*self.inputs, top[0].diff.view((1,) * len(self.shape))]
        loss_gradient, sigmoid = "abcdef"[len(inputs) - 1], "0.5 * tanh(0.5 * a) + 0.5"
        formula = f"y = {loss_gradient} * {self.weight} * ({sigmoid} - b)"
        program.broadcast(inputs, [bottom[0].diff.view(self.shape)], formula=formula)


@register("InfogainLoss")
class InfogainLoss(OfSoftmax):
    """Cross-entropy of softmax probabilities with the row of a matrix that the label names.

    The matrix (classes x classes) is bottom[2], or a BlobProto file, infogain_loss_param.source.
    With the identity it is SoftmaxWithLoss. A second top: the probabilities.
    """

    bottoms = (2, 3)
    no_gradient = (1, 2)
    messages = ("infogain_loss_param", "loss_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.infogain_loss_param
        self.read_scores(bottom, param.axis, "infogain_loss_param.axis")
        classes = self.rows[1]
        if len(bottom) < 3:
            self.matrix = self.tensor((classes, classes), persistent=True)
            self.initial = [(self.matrix, self._read_matrix(param.source, classes))]
        else:
            self.check_count(bottom, 2, classes**2, like=f", {classes} x {classes}")
        return [(), bottom[0]]

    def _read_matrix(self, source: str, classes: int) -> np.ndarray:
        if not source:
            self.fail("infogain_loss_param.source", "is missing, and so is bottom[2]")
        with self.blame("infogain_loss_param.source"):
            values = blob_to_array(
                read_message(source, BlobProto, "infogain matrix (.binaryproto)")
            )
            if values.size != classes * classes:
                text = f"{source} holds shape {values.shape}, but must be {classes} x {classes}"
                raise UserError(text)
        return values.reshape(classes, classes)

    def forward_loss(self, program: Program, bottom: Blobs, loss: Tensor) -> None:
        outer, classes, inner = self.rows
        matrix = bottom[2].data.view((classes, classes)) if len(bottom) > 2 else self.matrix
        # The row of each position's label, and then the classes along axis 1.
        picked, self.gain = self.tensor((outer, inner, classes)), self.tensor(self.rows)
        program.gather(matrix, self.targets.view((outer, inner)), picked)
        program.permute(picked, self.gain, axes=(0, 2, 1))
        inputs = [self.probability, self.gain, self.targets, self.divisor]
        formula = f"y = where({self._skip()}, 0, -b * log(max(a, 1e-20)) / d)"
        program.reduce(inputs, loss, formula=formula, axes=(0, 1, 2))

    def _skip(self) -> str:
        """The condition under which label c is ignored (if none is: only what is not a number)."""
        return "c != c" if self.ignore is None else f"c == {self.ignore}"

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        total, dloss = self.tensor(self.positions), top[0].diff.view((1, 1, 1))
        program.reduce([self.gain], total, formula="y = a", axes=(1,))
        inputs = [self.probability, self.gain, self.targets, self.divisor, dloss, total]
        formula = f"y = where({self._skip()}, 0, e / d * (a * f - b))"
        program.broadcast(inputs, [bottom[0].diff.view(self.rows)], formula=formula)
