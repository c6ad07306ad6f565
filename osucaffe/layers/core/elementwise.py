"""The layers that treat every element alike: the activation functions, and Dropout."""

from __future__ import annotations

import math
from typing import Any

from ...backends import formula
from ..base import Blobs, Flags, Layer, Program, Shapes, Tensor, pass_on, register


class Elementwise(Layer):
    """y = f(x). `value` computes y from a = x.

    derivative: computes y = dx from a = dy and b = the top's value or, with `from_input`, the
    bottom's, of which a copy is kept when the layer works in place (None: from dy alone). numbers:
    the fields of its settings that both use as constants.
    """

    in_place = True
    value: str
    derivative: str
    from_input: bool | None = False
    numbers: tuple[str, ...] = ()

    def setup(self, bottom: Shapes) -> Shapes:
        self.constants = self.read_constants()
        return bottom

    def read_constants(self) -> dict[str, float]:
        """The constants of both formulas."""
        settings = getattr(self.param, f"{self.type.lower()}_param") if self.numbers else None
        return {name: getattr(settings, name) for name in self.numbers}

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data, top[0].data
        self.saved = [] if self.from_input is None else [y]
        if self.from_input:
            self.saved = [self.saved_input(program, bottom, top, flexible=False)]
        program.elementwise([x], [y], formula=self.value, constants=self.constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        inputs, dx, constants = [top[0].diff, *self.saved], bottom[0].diff, self.constants
        program.elementwise(inputs, [dx], formula=self.derivative, constants=constants)


def _function(name: str, text: str, value: str, derivative: str, **options: Any) -> None:
    """Register an Elementwise that its formulas alone tell from others; text: its docstring."""
    members = {"__doc__": text, "value": value, "derivative": derivative, **options}
    register(name)(type(name, (Elementwise,), members))


_function("AbsVal", "y = |x|.", "y = abs(a)", "y = a * sign(b)", from_input=True)
_function(
    "BNLL", "y = log(1 + exp(x)), the binomial normal log likelihood.",
    "y = max(a, 0) + log1p(exp(-abs(a)))", "y = a / (1 + exp(-b))", from_input=True,
)  # fmt: skip
_function(
    "ELU", "y = x where it is positive, else alpha * (exp(x) - 1) (Clevert et al. 2016).",
    formula.ELU, "y = where(b > 0, a, a * alpha * exp(min(b, 0)))",
    from_input=True, numbers=("alpha",),
)  # fmt: skip
_function(  # the derivative is of the value: where it is n, nothing comes through any more
    "ReLU6", "y = x held between 0 and n, which is 6 (mobile nets); below 0, negative_slope * x.",
    formula.RELU6, "y = where(b > 0, where(b < n, a, 0), negative_slope * a)",
    numbers=("n", "negative_slope"),
)  # fmt: skip
_function(
    "Sigmoid", "y = 1 / (1 + exp(-x)).", "y = 0.5 * tanh(0.5 * a) + 0.5", "y = a * b * (1 - b)"
)
_function(
    "Swish", "y = x * sigmoid(beta * x) (Ramachandran et al. 2017).",
    "y = a / (1 + exp(-beta * a))",
    "s = 1 / (1 + exp(-beta * b)); y = a * s * (1 + beta * b * (1 - s))",
    from_input=True, numbers=("beta",),
)  # fmt: skip
_function("TanH", "y = tanh(x).", "y = tanh(a)", "y = a * (1 - b * b)")
_function(
    "Threshold", "y = 1 where x is above the threshold, else 0.",
    "y = where(a > threshold, 1, 0)", "", numbers=("threshold",), no_gradient=(0,),
)  # fmt: skip


@register("ReLU")
class ReLU(Layer):
    """y = x where it is positive, else negative_slope * x."""

    in_place = derived = True

    def setup(self, bottom: Shapes) -> Shapes:
        self.slope = self.param.relu_param.negative_slope
        return bottom

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.saved = bottom[0].data
        if self.slope < 0:  # what comes out has other signs
            self.saved = self.saved_input(program, bottom, top)
        program.relu(bottom[0].data, top[0].data, slope=self.slope)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        program.relu_backward(self.saved, top[0].diff, bottom[0].diff, slope=self.slope)


@register("Clip")
class Clip(Elementwise):
    """y = x held between min and max."""

    value = "y = min(max(a, low), high)"
    derivative = "y = where(b < low, 0, where(b > high, 0, a))"
    from_input = True

    def read_constants(self) -> dict[str, float]:
        param = self.param.clip_param
        if param.min > param.max:
            self.fail("clip_param.min", f"is {param.min}, more than max {param.max}")
        return {"low": param.min, "high": param.max}


@register("Exp")
class Exp(Elementwise):
    """y = base ** (shift + scale * x); base -1 stands for e."""

    value = "y = factor * exp(rate * a)"
    derivative = "y = a * b * rate"

    def read_constants(self) -> dict[str, float]:
        param = self.param.exp_param
        logarithm = math.log(_base(self, param.base, "exp_param"))
        try:
            factor = math.exp(logarithm * param.shift)
        except OverflowError:
            self.fail("exp_param.shift", f"is {param.shift:g}: base to this power is infinite")
        return {"factor": factor, "rate": logarithm * param.scale}


@register("GELU")
class GELU(Elementwise):
    """y = x * the normal distribution's Phi(x) (Hendrycks & Gimpel 2016)."""

    value = "y = 0.5 * a * (1 + erf(a * root))"
    derivative = "y = a * (0.5 * (1 + erf(b * root)) + b * density * exp(-0.5 * b * b))"
    from_input = True

    def read_constants(self) -> dict[str, float]:
        return {"root": math.sqrt(0.5), "density": 1 / math.sqrt(2 * math.pi)}


@register("Log")
class Log(Elementwise):
    """y = the logarithm to a base of shift + scale * x; base -1 stands for e."""

    value = "y = log(shift + scale * a) * unit"
    derivative = "y = a * scale * unit / (shift + scale * b)"
    from_input = True

    def read_constants(self) -> dict[str, float]:
        param = self.param.log_param
        base = _base(self, param.base, "log_param")
        if base == 1:
            self.fail("log_param.base", "is 1: 1 is not a base of logarithms")
        return {"shift": param.shift, "scale": param.scale, "unit": 1 / math.log(base)}


@register("Power")
class Power(Elementwise):
    """y = (shift + scale * x) ** power."""

    numbers = ("power", "scale", "shift")
    value = "y = (shift + scale * a) ** power"
    derivative = "y = a * power * scale * (shift + scale * b) ** (power - 1)"
    from_input: bool | None = True

    def read_constants(self) -> dict[str, float]:
        param = self.param.power_param
        if param.power in (0, 1):  # 0 ** 0 and 0 ** -1 must not come up: no power at all
            self.value = "y = 1 + 0 * a" if param.power == 0 else "y = shift + scale * a"
            self.derivative, self.from_input = "y = a * power * scale", None
        return super().read_constants()


def _base(layer: Layer, base: float, field: str) -> float:
    if base == -1:
        return math.e
    if base <= 0:
        layer.fail(f"{field}.base", f"is {base}: it must be positive, or -1 for e")
    return base


@register("Dropout")
class Dropout(Layer):
    """Zero a share dropout_ratio of the elements in training, scale up the others.

    sample_weights_test: in TEST, too, so that each pass is a sample (Bayesian SegNet, Kendall et
    al. 2015).
    """

    in_place = True

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.dropout_param
        self.ratio = param.dropout_ratio
        if not 0 <= self.ratio < 1:
            self.fail("dropout_param.dropout_ratio", f"is {self.ratio}: it must be in [0, 1)")
        self.drops = self.phase == "TRAIN" or param.sample_weights_test
        self.later = not param.scale_train
        return bottom

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data, top[0].data
        if self.drops:
            self.mask = self.tensor(x.shape, "uint8", flexible=True)
            program.dropout(x, y, self.mask, ratio=self.ratio, key=self.key)
            x = y
        if self.later:
            self._scale_down(program, x, y)
        else:
            pass_on(program, x, y)

    def _scale_down(self, program: Program, x: Tensor, y: Tensor) -> None:
        """What Fast R-CNN's scale_train: false does in testing; in training it takes back what
        dropout scales up."""
        program.elementwise([x], [y], formula="y = kept * a", constants={"kept": 1 - self.ratio})

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy, dx = top[0].diff, bottom[0].diff
        if self.drops:
            program.dropout_backward(dy, self.mask, dx, ratio=self.ratio, key=self.key)
            dy = dx
        if self.later:
            self._scale_down(program, dy, dx)
        elif dy is not dx:
            program.copy(dy, dx)
