"""Owns MarginInnerProduct: scores of faces by angles, with a margin that multiplies (SphereFace).

Liu et al. 2017; wy1iu/sphereface, src/caffe/layers/margin_inner_product_layer.cpp.
"""

from __future__ import annotations

import math
from typing import Any

from ..base import Blobs, Flags, Program, Shapes, register
from .scheduled import Changing

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
class MarginInnerProduct(Changing):
    """Products with weights of length 1, less for an item's own class: |x| times psi of its angle.

    Mixed with the product itself by lambda, which falls with each pass: base * (1 + gamma *
    iteration) ^ -power, and not below lambda_min. A second top: lambda. Weights are kept at length
    1; their gradient is that of plain products, and that of x by the margin has length 1, as in
    the fork.
    """

    bottoms = (2, 2)
    tops = (1, 2)
    no_gradient = (1,)
    gives_none = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.margin_inner_product_param
        axis = self.axis(param.axis, len(bottom[0]), "margin_inner_product_param.axis")
        self.check_positive("margin_inner_product_param", "num_output")
        items = math.prod(bottom[0][:axis])
        if math.prod(bottom[1]) != items:
            self.fail("bottom[1]", f"has shape {bottom[1]}: {items} items need as many labels")
        self.takes_labels(1, param.num_output)
        self.features = (items, math.prod(bottom[0][axis:]))
        self.scores = (items, param.num_output)
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
        mixture = self.bring(program)
        if len(top) > 1:
            program.copy(mixture, top[1].data)
        weight, unit = self.parameters[0].data, self.tensor((self.scores[1], self.features[1]))
        total = self.tensor((self.scores[1], 1))
        program.reduce([weight], total, formula="y = a * a", axes=(1,))
        program.broadcast([weight, total], [weight, unit], formula="y = a / sqrt(b); z = y")
        # A view is what it is, where backends may have copies of parameters in other types.
        self.unit = unit.view(unit.shape)
        x, product = bottom[0].data.view(self.features), self.tensor(self.scores)
        program.inner_product(x, self.unit, None, product, **self.settings)
        length, classes = self.tensor((self.scores[0], 1)), self.tensor((1, self.scores[1]))
        program.reduce([x], length, formula="y = a * a", axes=(1,))
        program.elementwise([length], [length], formula="y = max(sqrt(a), 1e-12)")
        program.positions(classes)
        label = bottom[1].data.view((self.scores[0], 1))
        self.inputs = [product, length, label, classes, mixture.view((1, 1))]
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
        shares, own = self.tensor(self.scores), self.tensor((self.scores[0], 1))
        formula = f"{slopes}; y = where(c == d, f * (along / size + e) / (1 + e), f)"
        program.broadcast(inputs, [shares], formula=formula)
        formula = f"{slopes}; y = where(c == d, f * back / size / (1 + e), 0)"
        program.reduce(inputs, own, formula=formula, axes=(1,))
        program.inner_product_backward_data(shares, self.unit, dx, **self.settings)
        program.broadcast([dx, x, own], [dx], formula="y = a + b * c")
