"""Owns LabelSpecificAdd and LabelSpecificRescale, which change the score of an item's own class.

AM-Softmax and NormFace; happynear/caffe-windows and forks of it.
"""

from __future__ import annotations

import math

from ..base import Blob, Blobs, Flags, Program, Shapes, Tensor, register
from .scheduled import Changing


class LabelSpecific(Changing):
    """What both share: scores (N, ...) and labels (N), and the number's top."""

    bottoms = (2, 2)
    tops = (1, 2)
    no_gradient = (1,)
    gives_none = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        shape = bottom[0]
        self.scores = (shape[0], math.prod(shape[1:]))
        if math.prod(bottom[1]) != shape[0]:
            self.fail("bottom[1]", f"has shape {bottom[1]}: {shape[0]} items need as many labels")
        self.takes_labels(1, self.scores[1])
        return [shape, (1,)]

    def own(self, program: Program, labels: Blob) -> list[Tensor]:
        """Labels and classes to compare: where they are equal is an item's own class."""
        classes = self.tensor((1, self.scores[1]))
        program.positions(classes)
        return [labels.data.view((self.scores[0], 1)), classes]


@register("LabelSpecificAdd")
class LabelSpecificAdd(LabelSpecific):
    """Adds a bias to the score of each item's own class, in TRAIN (AM-Softmax's margin).

    Scores that the bias would take below 0 stay as they are; its sign is that of a margin: -0.35.
    With bias_base it changes with each pass: bias_base + (1 + bias_gamma * iteration) ^ bias_power
    - 1, within bias_min and bias_max. A second top: the bias (0 in TEST).
    """

    messages = ("label_specific_add_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        self.iteration = self.param.label_specific_add_param.iteration
        return super().setup(bottom)

    @property
    def number(self) -> float:
        param = self.param.label_specific_add_param
        if not param.HasField("bias_base"):
            return param.bias
        bias = param.bias_base + (1 + param.bias_gamma * self.iteration) ** param.bias_power - 1
        return min(max(bias, param.bias_min), param.bias_max)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        if self.phase == "TEST":
            program.copy(bottom[0].data, top[0].data)
            if len(top) > 1:
                program.fill(top[1].data, value=0.0)
            return
        bias = self.bring(program)
        if len(top) > 1:
            program.copy(bias, top[1].data)
        x, y = (blob.data.view(self.scores) for blob in (bottom[0], top[0]))
        program.broadcast(
            [x, *self.own(program, bottom[1]), bias.view((1, 1))], [y],
            formula="y = where(b == c, where(a + d > 0, a + d, a), a)",
        )  # fmt: skip

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.copy(top[0].diff, bottom[0].diff)


@register("LabelSpecificRescale")
class LabelSpecificRescale(LabelSpecific):
    """The score of each item's own class times positive_weight, others times negative_weight.

    In TRAIN, and with rescale_test in TEST. for_ip: an own score below 0 stays as it is.
    power_on_positive: it is raised to the weight instead, and keeps its sign; bias_fix: 1 less the
    weight is added. With positive_weight_base the weight changes in TRAIN: positive_weight_base *
    (1 + gamma * iteration) ^ -power, within positive_weight_min and _max. A second top: the weight.
    """

    in_place = True
    messages = ("label_specific_rescale_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.label_specific_rescale_param
        self.iteration = param.iteration
        self.plain = self.phase == "TEST" and not param.rescale_test
        self.constants = {"negative": param.negative_weight}
        self.value, self.slope = "a * d", "d"
        if param.power_on_positive:
            size = "max(abs(a), 1e-30)"
            self.value, self.slope = f"sign(a) * {size} ** d", f"d * {size} ** (d - 1)"
        elif param.bias_fix:
            self.value = "a * d + 1 - d"
        if param.for_ip:
            self.value, self.slope = (
                f"where(a > 0, {self.value}, a)", f"where(a > 0, {self.slope}, 1)"
            )  # fmt: skip
        return super().setup(bottom)

    @property
    def number(self) -> float:
        param = self.param.label_specific_rescale_param
        if self.phase == "TEST" or not param.HasField("positive_weight_base"):
            return param.positive_weight
        falling = (1 + param.gamma * (self.iteration + 1)) ** -param.power
        weight = param.positive_weight_base * falling
        if param.HasField("positive_weight_min"):
            weight = max(weight, param.positive_weight_min)
        if param.HasField("positive_weight_max"):
            weight = min(weight, param.positive_weight_max)
        return weight

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        weight, x, y = self.bring(program), bottom[0].data, top[0].data
        if len(top) > 1:
            program.copy(weight, top[1].data)
        if self.plain:
            if x is not y:
                program.copy(x, y)
            return
        saved = x
        if x is y:
            saved = self.tensor(x.shape)
            program.copy(x, saved)
        own = self.own(program, bottom[1])
        self.inputs = [saved.view(self.scores), *own, weight.view((1, 1))]
        formula = f"y = where(b == c, {self.value}, negative * a)"
        program.broadcast(
            self.inputs, [y.view(self.scores)], formula=formula, constants=self.constants
        )

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff, bottom[0].diff
        if self.plain:
            if dy is not dx:
                program.copy(dy, dx)
            return
        formula = f"y = e * where(b == c, {self.slope}, negative)"
        program.broadcast(
            [*self.inputs, dy.view(self.scores)], [dx.view(self.scores)],
            formula=formula, constants=self.constants,
        )  # fmt: skip
