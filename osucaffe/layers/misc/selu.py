"""Owns the layers of self-normalizing nets: SeLu and SeLuDropout (Klambauer et al. 2017).

Names and settings are those of the fork of soeaver/caffe-model's nets.
"""

from __future__ import annotations

from ..base import Blobs, Flags, Layer, Program, Shapes, register
from ..core.elementwise import Elementwise


@register("SeLu")
class SeLu(Elementwise):
    """y = lambda * x where it is positive, else lambda * alpha * (exp(x) - 1)."""

    value = "y = rate * where(a > 0, a, alpha * expm1(min(a, 0)))"
    derivative = "y = a * rate * where(b > 0, 1, alpha * exp(min(b, 0)))"
    from_input = True

    def read_constants(self) -> dict[str, float]:
        param = self.param.selu_param
        return {"alpha": param.alpha, "rate": getattr(param, "lambda")}


@register("SeLuDropout")
class SeLuDropout(Layer):
    """Dropout, in training, to alpha instead of 0, scaled and shifted to keep mean and variance."""

    in_place = True
    messages = ("selu_dropout_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.selu_dropout_param
        self.ratio = param.dropout_ratio
        if not 0 <= self.ratio < 1:
            self.fail("selu_dropout_param.dropout_ratio", f"is {self.ratio}: it must be in [0, 1)")
        kept = 1 - self.ratio
        scale = (kept * (1 + param.alpha**2 * self.ratio)) ** -0.5
        shift = -scale * self.ratio * param.alpha
        self.constants = {"scale": scale, "beside": scale * param.alpha + shift, "shift": shift}
        return bottom

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data, top[0].data
        if self.phase == "TEST":
            if x is not y:
                program.copy(x, y)
            return
        ones, self.kept = self.tensor(x.shape), self.tensor(x.shape)
        program.fill(ones, value=1.0)
        mask = self.tensor(x.shape, "uint8")
        program.dropout(ones, self.kept, mask, ratio=self.ratio, key=self.key)
        formula = "y = where(b > 0, scale * a + shift, beside)"
        program.elementwise([x, self.kept], [y], formula=formula, constants=self.constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff, bottom[0].diff
        if self.phase == "TRAIN":
            formula = "y = where(b > 0, scale * a, 0)"
            program.elementwise([dy, self.kept], [dx], formula=formula, constants=self.constants)
        elif dy is not dx:
            program.copy(dy, dx)
