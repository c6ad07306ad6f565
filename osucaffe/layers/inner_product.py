"""Owns InnerProduct: every output is a weighted sum of all inputs."""

from __future__ import annotations

import math
from typing import Any

from ..backends.primitives import Program
from ..backends.tensor import Shape
from ..blob import Blob
from ..layer import Layer, register


@register("InnerProduct")
class InnerProduct(Layer):
    """A fully connected layer: axes from `axis` on become num_output weighted sums."""

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param = self.param.inner_product_param
        axis = self.axis(param.axis, len(bottom[0]), "inner_product_param.axis")
        inputs, outputs = math.prod(bottom[0][axis:]), param.num_output
        if outputs < 1:
            self.fail("inner_product_param.num_output", "must be at least 1")
        shape = (inputs, outputs) if param.transpose else (outputs, inputs)
        self.add_parameter(shape, param.weight_filler)
        if param.bias_term:
            self.add_parameter((outputs,), param.bias_filler)
        self.settings: dict[str, Any] = {"axis": axis, "transpose": param.transpose}
        return [(*bottom[0][:axis], outputs)]

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        bias = self.parameters[1].data if len(self.parameters) > 1 else None
        weight = self.parameters[0].data
        program.inner_product(bottom[0].data, weight, bias, top[0].data, **self.settings)

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        x, dy, dw, db = bottom[0].data, top[0].diff, self.gradient(0), self.gradient(1)
        if dw is not None or db is not None:
            program.inner_product_backward_filter(x, dy, dw, db, **self.settings)
        if propagate_down[0]:
            weight = self.parameters[0].data
            program.inner_product_backward_data(dy, weight, bottom[0].diff, **self.settings)
