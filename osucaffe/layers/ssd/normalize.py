"""Owns the two layers that are called Normalize: SSD's, whose features of length 1 are scaled by a
learned number (ParseNet), and NormFace's, without one. SSD's nets give norm_param, which
NormFace's lack."""

from __future__ import annotations

import math
from typing import Any

from ..base import Blobs, Flags, Layer, Program, Shapes, register


@register("Normalize")
class Normalize(Layer):
    """x / its length over the channels (across_spatial: over the image) * a learned scale."""

    messages = ("norm_param", "normalize_param")

    @classmethod
    def form(cls, param: Any) -> type[Layer]:
        return cls if param.HasField("norm_param") else FeatureNormalize

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.norm_param, bottom[0]
        self.check_axes(shape, "N x C ...")
        self.shape = (shape[0], shape[1], math.prod(shape[2:]))
        self.axes: tuple[int, ...] = (1, 2) if param.across_spatial else (1,)
        self.small = (shape[0], 1, 1 if param.across_spatial else self.shape[2])
        ones = type(param.scale_filler)(type="constant", value=1)
        filler = param.scale_filler if param.HasField("scale_filler") else ones
        self.add_parameter(() if param.channel_shared else (shape[1],), filler)
        self.others = (0, 1, 2) if param.channel_shared else (0, 2)
        self.spread = (1, 1 if param.channel_shared else shape[1], 1)
        self.constants = {"eps": param.eps}
        return [shape]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.x, self.rate = bottom[0].data.view(self.shape), self.tensor(self.small)
        squares = self.tensor(self.small)
        self.scale = self.parameters[0].data.view(self.spread)
        program.reduce([self.x], squares, formula="y = a * a", axes=self.axes)
        formula = "y = 1 / sqrt(a + eps)"
        program.elementwise([squares], [self.rate], formula=formula, constants=self.constants)
        y = top[0].data.view(self.shape)
        program.broadcast([self.x, self.rate, self.scale], [y], formula="y = a * b * c")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        inputs = [top[0].diff.view(self.shape), self.x, self.rate]
        if (dw := self.gradient(0)) is not None:
            program.reduce_gradient(inputs, dw, formula="y = a * b * c", axes=self.others)
        if propagate_down[0]:
            along = self.tensor(self.small)
            inputs.append(self.scale)
            program.reduce(inputs, along, formula="y = a * b * c * d", axes=self.axes)
            dx = bottom[0].diff.view(self.shape)
            formula = "y = c * (a * d - b * c * e)"
            program.broadcast([*inputs, along], [dx], formula=formula)


EPS = 1e-6

NORMS = {
    "L2": ("y = a * a", "y = sqrt(a + eps)", "c"),
    "L1": ("y = abs(a)", "y = a + eps", "sign(b)"),
}
"""Of each type: what is summed over the channels, the norm from that sum, and the norm's derivative
to an element, from the element b of x and c of y."""


class FeatureNormalize(Layer):
    """x over its norm over the channels at each place (a second top: the norm).

    normalize_param: normalize_type, L2 or L1; bp_norm: the second top's gradient goes on to x.
    """

    tops = (1, 2)

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.normalize_param, bottom[0]
        self.check_axes(shape, "N x C ...")
        if param.normalize_type not in NORMS:
            self.fail(
                "normalize_param.normalize_type",
                f'is "{param.normalize_type}": give one of {", ".join(NORMS)}',
            )
        self.gives_none = () if param.bp_norm else (1,)
        self.summed, self.norm_formula, self.slope = NORMS[param.normalize_type]
        self.small = (shape[0], 1, *shape[2:])
        return [shape, self.small]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x = bottom[0].data
        self.norm = top[1].data if len(top) > 1 else self.tensor(self.small)
        total = self.tensor(self.small)
        program.reduce([x], total, formula=self.summed, axes=(1,))
        constants = {"eps": EPS}
        program.elementwise([total], [self.norm], formula=self.norm_formula, constants=constants)
        program.broadcast([x, self.norm], [top[0].data], formula="y = a / b")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        x, y, dy = bottom[0].data, top[0].data, top[0].diff
        dot = self.tensor(self.small)
        program.reduce([dy, y], dot, formula="y = a * b", axes=(1,))
        inputs, formula = [dy, x, y, dot, self.norm], f"(a - {self.slope} * d) / e"
        if len(top) > 1 and not self.gives_none:
            inputs, formula = [*inputs, top[1].diff], f"{formula} + {self.slope} * f"
        program.broadcast(inputs, [bottom[0].diff], formula=f"y = {formula}")
