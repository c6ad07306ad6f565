"""Owns Normalize as SSD has it: features of length 1, times a learned scale (ParseNet).

NormFace's layer of the same name (feature_normalize.py) has no norm_param, which SSD's nets give.
"""

from __future__ import annotations

import math
from typing import Any

from ..backends.primitives import Program
from ..backends.tensor import Shape
from ..blob import Blob
from .base import Layer, register
from .feature_normalize import FeatureNormalize


@register("Normalize")
class Normalize(Layer):
    """x / its length over the channels (across_spatial: over the image) * a learned scale."""

    messages = ("norm_param", "normalize_param")

    @classmethod
    def form(cls, param: Any) -> type[Layer]:
        return cls if param.HasField("norm_param") else FeatureNormalize

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param, shape = self.param.norm_param, bottom[0]
        if len(shape) < 2:
            self.fail("bottom", f"has shape {shape}, but must have channels on axis 1")
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

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        self.x, self.rate = bottom[0].data.view(self.shape), self.tensor(self.small)
        squares = self.tensor(self.small)
        self.scale = self.parameters[0].data.view(self.spread)
        program.reduce([self.x], squares, formula="y = a * a", axes=self.axes)
        formula = "y = 1 / sqrt(a + eps)"
        program.elementwise([squares], [self.rate], formula=formula, constants=self.constants)
        y = top[0].data.view(self.shape)
        program.broadcast([self.x, self.rate, self.scale], [y], formula="y = a * b * c")

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
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
