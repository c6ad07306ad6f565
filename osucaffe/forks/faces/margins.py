"""Scores of faces with margins, which change from pass to pass: LabelSpecificAdd and
LabelSpecificRescale (AM-Softmax, NormFace; happynear/caffe-windows), and MarginInnerProduct, whose
margin multiplies angles (SphereFace; Liu et al. 2017; wy1iu/sphereface); and NormFace's Noise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import filler
from ...data.ahead.pipeline import allocate
from ...layers.base import (
    Blob,
    Blobs,
    Flags,
    Layer,
    Program,
    Shape,
    Shapes,
    Tensor,
    pass_on,
    register,
)
from ...proto import caffe_pb2


class ScheduledLayer(Layer):
    """A layer with a `number` that the host brings before each pass; `iteration` counts them."""

    iteration = 0

    @property
    def number(self) -> float | np.ndarray:
        """What counts in the next pass."""
        raise NotImplementedError

    def bring(self, program: Program, top: Blobs, shape: Shape = (1,)) -> Tensor:
        """Record what brings the number, or numbers, and shows it as the second top. Returns where
        they will be."""
        self._buffer, fed, number = allocate(shape), self.tensor(shape), self.tensor(shape)
        program.host([], [fed], function=lambda: self._feed(fed), feed=True)
        program.copy(fed, number)  # what is fed is float32, whatever the net computes in
        if len(top) > 1:
            program.copy(number, top[1].data)
        return number

    def _feed(self, fed: Tensor) -> None:
        self._buffer.array[...] = self.number
        self.iteration += 1
        fed.place(self._buffer.flat, self._buffer.address)


class ScheduledByLabel(ScheduledLayer):
    """One of scores and labels; a second top: the number."""

    bottoms = (2, 2)
    tops = (1, 2)
    no_gradient = (1,)
    non_differentiable_tops = (1,)
    scores: tuple[int, int]

    def labels(self, program: Program, labels: Blob) -> list[Tensor]:
        """Labels and classes to compare: they are equal at the class of an item's label."""
        classes = self.indices(program, (1, self.scores[1]))
        return [labels.data.view((self.scores[0], 1)), classes]


@register("Noise")
class Noise(ScheduledLayer):
    """A bias and random noise are added in TRAIN, and again in each pass.

    gaussian_std: normal noise of that many times the root mean square of the bottom; uniform_range:
    noise within it.
    """

    in_place = True
    messages = ("noise_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        return bottom

    @property
    def number(self) -> np.ndarray:
        param, shape = self.param.noise_param, self._buffer.array.shape
        kind: dict[str, Any] = {"type": "uniform", "min": -1, "max": 1}
        if param.HasField("gaussian_std"):
            kind = {"type": "gaussian", "std": 1}
        draws = filler.Draws(self.seed, self.key, 0, self.iteration)
        return filler.fill(caffe_pb2.FillerParameter(**kind), shape, draws, self.title)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        param, x, y = self.param.noise_param, bottom[0].data, top[0].data
        gaussian = param.HasField("gaussian_std")
        if self.phase == "TEST" or not (gaussian or param.HasField("uniform_range")):
            if x is not y:
                program.copy(x, y)
            return
        flat, square = (x.count,), self.tensor((1,))
        noise, inputs = self.bring(program, top, x.shape), [x.view(flat)]
        constants = {"share": 1 / x.count}
        program.reduce(inputs, square, formula="y = share * a * a", axes=(0,), constants=constants)
        constants = {"bias": param.bias, "size": param.uniform_range}
        formula = "y = a + bias + size * b"
        if gaussian:
            constants["size"], formula = param.gaussian_std, f"{formula} * sqrt(c)"
        inputs += [noise.view(flat), square]
        program.broadcast(inputs, [y.view(flat)], formula=formula, constants=constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if top[0].diff is not bottom[0].diff:
            program.copy(top[0].diff, bottom[0].diff)


class LabelSpecific(ScheduledByLabel):
    """What both share: scores (N, ...) and labels (N), and the number's top."""

    def setup(self, bottom: Shapes) -> Shapes:
        shape = bottom[0]
        self.scores = (shape[0], math.prod(shape[1:]))
        self.take_labels(bottom, *self.scores)
        return [shape, (1,)]


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
        bias = self.bring(program, top)
        x, y = (blob.data.view(self.scores) for blob in (bottom[0], top[0]))
        program.broadcast(
            [x, *self.labels(program, bottom[1]), bias.view((1, 1))], [y],
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
        self.identity = self.phase == "TEST" and not param.rescale_test
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
        weight, x, y = self.bring(program, top), bottom[0].data, top[0].data
        if self.identity:
            pass_on(program, x, y)
            return
        saved = self.saved_input(program, bottom, top, flexible=False)
        labels = self.labels(program, bottom[1])
        self.inputs = [saved.view(self.scores), *labels, weight.view((1, 1))]
        formula, y = f"y = where(b == c, {self.value}, negative * a)", y.view(self.scores)
        program.broadcast(self.inputs, [y], formula=formula, constants=self.constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff, bottom[0].diff
        if self.identity:
            pass_on(program, dy, dx)
            return
        formula = f"y = e * where(b == c, {self.slope}, negative)"
        program.broadcast(
            [*self.inputs, dy.view(self.scores)], [dx.view(self.scores)],
            formula=formula, constants=self.constants,
        )  # fmt: skip


_COSINE = "t = a / b; s = sign(t);"
MARGINS = {
    "SINGLE": (f"{_COSINE} psi = t", f"{_COSINE} along = 1; back = 0"),
    "DOUBLE": (
        f"{_COSINE} psi = 2 * s * t * t - 1",
        f"{_COSINE} along = 4 * s * t; back = -(2 * s * t * t + 1) / b",
    ),
    "TRIPLE": (
        f"{_COSINE} u = sign(abs(t) - 0.5); psi = u * (4 * t * t * t - 3 * t) + s * (1 + u) - 2",
        f"{_COSINE} u = sign(abs(t) - 0.5); along = u * (12 * t * t - 3);"
        "back = -(8 * u * t * t * t - s * (1 + u) + 2) / b",
    ),
    "QUADRUPLE": (
        f"{_COSINE} u = s * sign(2 * t * t - 1);"
        "psi = u * (8 * t * t * t * t - 8 * t * t + 1) + 2 * s + u - 3",
        f"{_COSINE} u = s * sign(2 * t * t - 1); along = u * (32 * t * t * t - 16 * t);"
        "back = -(u * (24 * t * t * t * t - 8 * t * t - 1) - 2 * s - u + 3) / b",
    ),
}
"""Of each type m: psi, which is (-1)^k cos(m angle) - 2k in the k-th of m equal parts of 0 .. pi,
and how |x| psi changes with x: `along` the weights and `back` along x. From a = a product with
weights of length 1 and b = |x|."""


@register("MarginInnerProduct")
class MarginInnerProduct(ScheduledByLabel):
    """Products with weights of length 1, less for an item's own class: |x| times psi of its angle.

    Mixed with the product itself by lambda, which falls with each pass: base * (1 + gamma *
    iteration) ^ -power, and not below lambda_min. A second top: lambda. Weights are kept at length
    1; their gradient is that of plain products, and that of x by the margin has length 1, as in
    the fork.
    """

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.margin_inner_product_param
        axis = self.axis(param.axis, len(bottom[0]), "margin_inner_product_param.axis")
        self.check_positive("margin_inner_product_param", "num_output")
        items = math.prod(bottom[0][:axis])
        self.features = (items, math.prod(bottom[0][axis:]))
        self.scores = (items, param.num_output)
        self.take_labels(bottom, *self.scores)
        self.add_parameter((param.num_output, self.features[1]), param.weight_filler)
        self.psi, self.slopes = MARGINS[param.MarginType.Name(param.type)]
        self.iteration = param.iteration
        self.settings: dict[str, Any] = {"axis": 1, "transpose": False}
        return [(*bottom[0][:axis], param.num_output), (1,)]

    @property
    def number(self) -> float:
        """Lambda."""
        param = self.param.margin_inner_product_param
        falling = param.base * (1 + param.gamma * (self.iteration + 1)) ** -param.power
        return max(falling, param.lambda_min)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        mixture = self.bring(program, top)
        weight, unit = self.parameters[0].data, self.tensor((self.scores[1], self.features[1]))
        total = self.tensor((self.scores[1], 1))
        program.reduce([weight], total, formula="y = a * a", axes=(1,))
        program.broadcast([weight, total], [weight, unit], formula="y = a / sqrt(b); z = y")
        # A view is what it is, where backends may have copies of parameters in other types.
        self.unit = unit.view(unit.shape)
        x, product = bottom[0].data.view(self.features), self.tensor(self.scores)
        program.inner_product(x, self.unit, None, product, **self.settings)
        length = self.tensor((self.scores[0], 1))
        program.reduce([x], length, formula="y = a * a", axes=(1,))
        program.elementwise([length], [length], formula="y = max(sqrt(a), 1e-12)")
        labels = self.labels(program, bottom[1])
        self.inputs = [product, length, *labels, mixture.view((1, 1))]
        formula = f"{self.psi}; y = where(c == d, (b * psi + e * a) / (1 + e), a)"
        program.broadcast(self.inputs, [top[0].data.view(self.scores)], formula=formula)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        x, dy = bottom[0].data.view(self.features), top[0].diff.view(self.scores)
        if (dw := self.gradient(0)) is not None:
            program.inner_product_backward_filter(x, dy, dw, None, **self.settings)
        if not propagate_down[0]:
            return
        inputs, dx = [*self.inputs, dy], bottom[0].diff.view(self.features)
        slopes = f"{self.slopes}; size = sqrt(along * along + back * back)"
        shares, rate = self.tensor(self.scores), self.tensor((self.scores[0], 1))
        formula = f"{slopes}; y = where(c == d, f * (along / size + e) / (1 + e), f)"
        program.broadcast(inputs, [shares], formula=formula)
        formula = f"{slopes}; y = where(c == d, f * back / size / (1 + e), 0)"
        program.reduce(inputs, rate, formula=formula, axes=(1,))
        program.inner_product_backward_data(shares, self.unit, dx, **self.settings)
        program.broadcast([dx, x, rate], [dx], formula="y = a + b * c")
