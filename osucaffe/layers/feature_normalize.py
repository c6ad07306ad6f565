"""Owns NormFace's Normalize, which gives the features at each place the length 1."""

from __future__ import annotations

from ..backends.primitives import Program
from ..backends.tensor import Shape
from ..blob import Blob
from .base import Layer

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

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param, shape = self.param.normalize_param, bottom[0]
        if len(shape) < 2:
            self.fail("bottom", f"has shape {shape}, but must be N x C ...")
        if param.normalize_type not in NORMS:
            self.fail(
                "normalize_param.normalize_type",
                f'is "{param.normalize_type}": give one of {", ".join(NORMS)}',
            )
        self.gives_none = () if param.bp_norm else (1,)
        self.summed, self.norm_formula, self.slope = NORMS[param.normalize_type]
        self.small = (shape[0], 1, *shape[2:])
        return [shape, self.small]

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        x = bottom[0].data
        self.norm = top[1].data if len(top) > 1 else self.tensor(self.small)
        total = self.tensor(self.small)
        program.reduce([x], total, formula=self.summed, axes=(1,))
        constants = {"eps": EPS}
        program.elementwise([total], [self.norm], formula=self.norm_formula, constants=constants)
        program.broadcast([x, self.norm], [top[0].data], formula="y = a / b")

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if not propagate_down[0]:
            return
        x, y, dy = bottom[0].data, top[0].data, top[0].diff
        dot = self.tensor(self.small)
        program.reduce([dy, y], dot, formula="y = a * b", axes=(1,))
        inputs, formula = [dy, x, y, dot, self.norm], f"(a - {self.slope} * d) / e"
        if len(top) > 1 and not self.gives_none:
            inputs, formula = [*inputs, top[1].diff], f"{formula} + {self.slope} * f"
        program.broadcast(inputs, [bottom[0].diff], formula=f"y = {formula}")
