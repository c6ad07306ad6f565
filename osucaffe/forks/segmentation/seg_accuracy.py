"""SegAccuracy: how many pixels are classified correctly (DeepLab, PSPNet)."""

from __future__ import annotations

import math

import numpy as np

from ...layers.base import Blobs, Layer, Program, Shapes, Tensor, register


@register("SegAccuracy")
class SegAccuracy(Layer):
    """The share of pixels that are right, the mean of it over classes, and the mean IoU.

    Classes without a pixel do not count in the second, and as 1 in the third where nothing is
    taken for them. With `reset: false` all passes count, not the last alone.
    """

    bottoms = (2, 2)
    no_gradient = (0, 1)
    non_differentiable_tops = (0,)

    def setup(self, bottom: Shapes) -> Shapes:
        param, (scores, labels) = self.param.seg_accuracy_param, bottom
        if len(scores) < 2 or math.prod(labels) * scores[1] != math.prod(scores):
            self.fail("bottom[1]", f"has shape {labels}: it must hold a label for each of {scores}")
        self.scores = (scores[0], scores[1], math.prod(scores[2:]))
        self.ignored = list(param.ignore_label)
        if len(self.ignored) < 2:
            ignored = self.ignored[0] if self.ignored else None
            self.take_labels(bottom, math.prod(labels), scores[1], ignored)
        self.sums = self.tensor((3, scores[1]), persistent=not param.reset)
        if not param.reset:
            self.initial = [(self.sums, np.zeros(self.sums.shape))]
        return [(1, 1, 1, 3)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        items, classes, positions = self.scores
        pixels, index = (items, 1, positions), self.tensor((items, 1, positions))
        label, predicted = self.tensor(pixels), self.tensor(pixels)
        program.top_k(bottom[0].data.view(self.scores), index, None, axis=1)
        # -1 where a label is ignored, -2 where it is not a class.
        formula = f"whole = floor(a); y = where(whole < 0, -2, where(whole < {classes}, whole, -2))"
        for ignored in self.ignored:
            formula += f"; y = where(whole == {ignored}, -1, y)"
        program.elementwise([bottom[1].data.view(pixels)], [label], formula=formula)
        program.elementwise([label, index], [predicted], formula="y = where(a < 0, -1, b)")
        wrong = self.tensor((1,))
        program.reduce([label], wrong, formula="y = where(a == -2, 1, 0)", axes=(0, 1, 2))
        self._judge(program, self._count(program, label, predicted), wrong, top[0].data.view((3,)))

    def _count(self, program: Program, label: Tensor, predicted: Tensor) -> Tensor:
        """How many pixels of each class are found, there, and taken for it: (3, classes)."""
        row, classes = (1, label.count), self.indices(program, (self.scores[1], 1))
        label, predicted = label.view(row), predicted.view(row)
        counts = [self.tensor((1, self.scores[1])) for _ in range(3)]
        both = "y = where(a == b, where(c == b, 1, 0), 0)"
        program.reduce([label, classes, predicted], counts[0], formula=both, axes=(1,))
        for of, count in zip((label, predicted), counts[1:], strict=True):
            program.reduce([of, classes], count, formula="y = where(a == b, 1, 0)", axes=(1,))
        reset = self.param.seg_accuracy_param.reset
        now = self.sums if reset else self.tensor(self.sums.shape)
        program.concat(counts, now, axis=0)
        if not reset:
            program.elementwise([self.sums, now], [self.sums], formula="y = a + b")
        return self.sums

    def _judge(self, program: Program, sums: Tensor, wrong: Tensor, y: Tensor) -> None:
        """The three measures of counts by class; NaN where a label was not a class."""
        parts = [self.tensor((1, self.scores[1])) for _ in range(3)]
        program.split(sums, parts, axis=0)
        right, there, taken = parts
        share = {"share": 1 / self.scores[1]}

        def total(inputs: list[Tensor], formula: str) -> Tensor:
            result = self.tensor((1,))
            program.reduce(inputs, result, formula=formula, axes=(0, 1), constants=share)
            return result

        ratio, measures = "y = a / max(b, 1)", [self.tensor((1,)) for _ in range(2)]
        pixels = [total([right], "y = a"), total([there], "y = a")]
        classes = [total([right, there], ratio), total([there], "y = where(a > 0, 1, 0)")]
        for pair, measure in zip((pixels, classes), measures, strict=True):
            program.elementwise(pair, [measure], formula=ratio)
        formula = "whole = b + c - a; y = share * where(whole > 0, a / max(whole, 1), 1)"
        measures.append(total([right, there, taken], formula))
        joined = self.tensor((3,))
        program.concat(measures, joined, axis=0)
        one, valid = self.tensor((1, 1)), self.tensor((1, 1))
        program.fill(one, value=1.0)
        program.gather(one, wrong, valid)  # NaN: there is but one element
        program.broadcast([joined, valid.view((1,))], [y], formula="y = a * b")
