"""Owns the layers without parameters that treat every element alike: the activation functions.

Each but ReLU is a pair of formulas (see backends/formula.py) and the constants that they name.
"""

from __future__ import annotations

import math
from typing import ClassVar

from ..backends.primitives import Program
from ..backends.tensor import Shape
from ..blob import Blob
from ..layer import Layer, register


class Elementwise(Layer):
    """y = f(x). `value` computes y from a = x.

    derivative: computes y = dx from a = dy and b = the top's value or, with `from_input`, the
    bottom's, of which a copy is kept when the layer works in place. None: it has no gradient.
    """

    in_place = True
    value: ClassVar[str]
    derivative: ClassVar[str | None]
    from_input: ClassVar[bool] = False

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        self.constants = self.read_constants()
        return bottom

    def read_constants(self) -> dict[str, float]:
        """The constants of both formulas."""
        return {}

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        self.saved = x if self.from_input else y
        if self.from_input and bottom[0] is top[0]:
            self.saved = self.tensor(x.shape)
            program.copy(x, self.saved)
        program.elementwise([x], [y], formula=self.value, constants=self.constants)

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if propagate_down[0]:
            if self.derivative is None:
                self.fail("bottom", "this layer has no gradient: set propagate_down: false")
            program.elementwise(
                [top[0].diff, self.saved],
                [bottom[0].diff],
                formula=self.derivative,
                constants=self.constants,
            )


@register("ReLU")
class ReLU(Layer):
    """y = x where it is positive, else negative_slope * x."""

    in_place = True

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        self.slope = self.param.relu_param.negative_slope
        return bottom

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        program.relu(bottom[0].data, top[0].data, slope=self.slope)

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if propagate_down[0]:
            x, dy, dx = bottom[0].data, top[0].diff, bottom[0].diff
            program.relu_backward(x, dy, dx, slope=self.slope)
