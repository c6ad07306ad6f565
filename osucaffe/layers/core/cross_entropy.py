"""Owns the cross-entropy losses besides SoftmaxWithLoss, put together from general primitives."""

from __future__ import annotations

import math

from ...backends.primitives import Program
from ...backends.tensor import Shape, Tensor
from ...blob import Blob
from ...data.ahead.pipeline import Buffer, allocate
from ...errors import UserError
from ...proto import BlobProto, blob_to_array
from ...proto.files import read_message
from ..base import register
from .losses import Loss
from .softmax import check_labels, pre_fixed, read_ignored, read_normalization


class Normalized(Loss):
    """A loss that may ignore a label, and that divides by a count of what it did not ignore."""

    no_gradient: tuple[int, ...] = (1,)

    def count(
        self, program: Program, label: Tensor, normalization: str, ignore: int | None, outer: int
    ) -> Tensor:
        """What the loss is divided by, at least 1: a scalar. outer: the items of the batch."""
        count = self.tensor(())
        if normalization == "VALID" and ignore is not None:
            label = label.view((label.count,))
            program.reduce([label], count, formula=f"y = {self.counted('a', ignore)}", axes=(0,))
            program.elementwise([count], [count], formula="y = max(a, 1)")
        else:
            counts = {"BATCH_SIZE": outer, "NONE": 1}
            whole = max(1, counts.get(normalization, label.count))
            program.fill(count, value=pre_fixed(self) or whole)
        return count

    @staticmethod
    def counted(name: str, ignore: int | None) -> str:
        """The formula of 1 where a label counts, 0 where it is ignored (its fraction cut off)."""
        if ignore is None:
            return "1"
        return f"where(floor(abs({name})) * sign({name}) == {ignore}, 0, 1)"


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(Normalized):
    """Cross-entropy of sigmoid(x) with targets between 0 and 1, element by element."""

    messages = ("loss_param",)

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        self.check_counts_alike(bottom)
        self.ignore = read_ignored(self.param.loss_param)
        self.normalization = read_normalization(self, default="BATCH_SIZE")
        return [()]

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        x, target = (blob.data.view((blob.data.count,)) for blob in bottom)
        batch = bottom[0].shape[0]
        self.divisor = self.count(program, target, self.normalization, self.ignore, batch)
        formula = (
            f"y = {self.counted('b', self.ignore)} / c * (max(a, 0) - a * b + log1p(exp(-abs(a))))"
        )
        inputs = [x, target, self.divisor.view((1,))]
        program.reduce(inputs, top[0].data, formula=formula, axes=(0,))

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if propagate_down[0]:
            x, target = (blob.data.view((blob.data.count,)) for blob in bottom)
            inputs = [x, target, self.divisor.view((1,)), top[0].diff.view((1,))]
            sigmoid = "0.5 * tanh(0.5 * a) + 0.5"
            formula = f"y = d * {self.counted('b', self.ignore)} / c * ({sigmoid} - b)"
            program.broadcast(inputs, [bottom[0].diff.view(x.shape)], formula=formula)


@register("InfogainLoss")
class InfogainLoss(Normalized):
    """Cross-entropy of softmax probabilities with the row of a matrix that the label names.

    The matrix (classes x classes) is bottom[2], or a BlobProto file, infogain_loss_param.source.
    With the identity it is SoftmaxWithLoss. A second top: the probabilities.
    """

    bottoms = (2, 3)
    tops = (1, 2)
    no_gradient = (1, 2)
    messages = ("infogain_loss_param", "loss_param")

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        scores, param = bottom[0], self.param.infogain_loss_param
        self.along = axis = self.axis(param.axis, len(scores), "infogain_loss_param.axis")
        self.ignore = read_ignored(self.param.loss_param)
        check_labels(self, bottom, axis, self.ignore)
        self.normalization = read_normalization(self)
        classes = scores[axis]
        self.folded = (math.prod(scores[:axis]), classes, math.prod(scores[axis + 1 :]))
        if len(bottom) < 3:
            self.matrix = self._read_matrix(param.source, classes)
        elif math.prod(bottom[2]) != classes * classes:
            self.fail("bottom[2]", f"has shape {bottom[2]}, but must be {classes} x {classes}")
        return [(), scores]

    def _read_matrix(self, source: str, classes: int) -> Buffer:
        """The matrix of a file, in host memory that the net can take as it is."""
        if not source:
            self.fail("infogain_loss_param.source", "is missing, and so is bottom[2]")
        try:
            found = read_message(source, BlobProto, "infogain matrix (.binaryproto)")
        except UserError as error:
            self.fail("infogain_loss_param.source", str(error))
        values = blob_to_array(found)
        if values.size != classes * classes:
            self.fail(
                "infogain_loss_param.source",
                f"{source} holds shape {values.shape}, but must be {classes} x {classes}",
            )
        buffer = allocate((classes, classes))
        buffer.array[...] = values.reshape(classes, classes)
        return buffer

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        x, label = bottom[0].data, bottom[1].data
        outer, classes, inner = self.folded
        self.probability = top[1].data if len(top) > 1 else self.tensor(x.shape)
        program.softmax(x, self.probability, axis=self.along)
        if len(bottom) > 2:
            matrix = bottom[2].data.view((classes, classes))
        else:
            fed, matrix = self.tensor((classes, classes)), self.tensor((classes, classes))
            program.host([], [fed], function=lambda: self._feed(fed), feed=True)
            program.copy(fed, matrix)  # what is fed is float32, whatever the net computes in
        # The row of each position's label, with the classes brought to their place.
        picked, self.gain = self.tensor((outer, inner, classes)), self.tensor(self.folded)
        program.gather(matrix, label.view((outer, inner)), picked)
        program.permute(picked, self.gain, axes=(0, 2, 1))
        self.divisor = self.count(program, label, self.normalization, self.ignore, outer)
        inputs = [
            self.probability.view(self.folded), self.gain, label.view((outer, 1, inner)),
            self.divisor.view((1, 1, 1)),
        ]  # fmt: skip
        formula = f"y = where({self._skip('c')}, 0, -b * log(max(a, 1e-20)) / d)"
        program.reduce(inputs, top[0].data, formula=formula, axes=(0, 1, 2))

    def _feed(self, matrix: Tensor) -> None:
        matrix.place(self.matrix.flat, self.matrix.address)

    def _skip(self, name: str) -> str:
        """The condition under which a label is ignored (if none is: only what is no number)."""
        return f"{name} == {self.ignore}" if self.ignore is not None else f"{name} != {name}"

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if not propagate_down[0]:
            return
        outer, _, inner = self.folded
        rows = self.tensor((outer, 1, inner))
        program.reduce([self.gain], rows, formula="y = a", axes=(1,))
        inputs = [
            self.probability.view(self.folded), self.gain, bottom[1].data.view((outer, 1, inner)),
            self.divisor.view((1, 1, 1)), top[0].diff.view((1, 1, 1)), rows,
        ]  # fmt: skip
        formula = f"y = where({self._skip('c')}, 0, e / d * (a * f - b))"
        program.broadcast(inputs, [bottom[0].diff.view(self.folded)], formula=formula)
