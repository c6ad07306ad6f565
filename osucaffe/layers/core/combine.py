"""The layers that combine elements: of several blobs, or of one along its axes."""

from __future__ import annotations

import math
from string import ascii_lowercase

from ..base import Blobs, Flags, Layer, Program, Shapes, register
from .channelwise import Scale


@register("Eltwise")
class Eltwise(Layer):
    """The weighted sum, product or maximum of blobs of one shape, element by element."""

    bottoms = (2, None)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.eltwise_param
        self.operation = param.EltwiseOp.Name(param.operation)
        self.in_place = self.derived = self.operation == "SUM"
        self.check_alike(bottom)
        if param.coeff and self.operation != "SUM":
            self.fail("eltwise_param.coeff", f"is for SUM, not {self.operation}")
        if param.coeff and len(param.coeff) != len(bottom):
            self.fail("eltwise_param.coeff", f"needs one for each of {len(bottom)} bottoms")
        self.coefficients = list(param.coeff) or [1.0] * len(bottom)
        self.names = ascii_lowercase[: len(bottom)]
        if self.operation != "SUM" and len(bottom) > 22:
            self.fail("bottom", f"{self.operation} takes 22 at most")
        return bottom[:1]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        xs, y = [blob.data for blob in bottom], top[0].data
        if self.operation == "SUM":
            program.sum(xs, y, coefficients=self.coefficients)
            return
        formula = "y = " + " * ".join(self.names)
        if self.operation == "MAX":
            formula = "; ".join(["y = a", *(f"y = max(y, {name})" for name in self.names[1:])])
        program.elementwise(xs, [y], formula=formula)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = top[0].diff
        # The first comes last: in place its gradient overwrites dy.
        for i, blob in reversed(list(enumerate(bottom))):
            if not propagate_down[i]:
                continue
            if self.operation == "SUM":
                program.sum([dy], blob.diff, coefficients=[self.coefficients[i]])
                continue
            inputs = [*(blob.data for blob in bottom), dy]
            program.elementwise(inputs, [blob.diff], formula=self._derivative(i))

    def _derivative(self, i: int) -> str:
        """The gradient of bottom i from all bottoms and dy, the input after them."""
        dy = ascii_lowercase[len(self.names)]
        if self.operation == "PROD":
            others = self.names[:i] + self.names[i + 1 :]
            return "y = " + " * ".join([dy, *others])
        # Caffe's choice among equals: the second of the first two, else the first.
        chain = ["largest = max(a, b)", "chosen = where(a > b, 0, 1)"]
        for position, name in enumerate(self.names[2:], 2):
            chain.append(f"chosen = where({name} > largest, {position}, chosen)")
            chain.append(f"largest = max(largest, {name})")
        return "; ".join([*chain, f"y = where(chosen == {i}, {dy}, 0)"])


@register("Reduction")
class Reduction(Layer):
    """The sum, mean, sum of squares or of magnitudes over the axes from `axis` on."""

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.reduction_param, bottom[0]
        axis = self.axis(param.axis, len(shape), "reduction_param.axis")
        self.value, self.derivative = {
            "SUM": ("y = k * a", "y = k * a"),
            "MEAN": ("y = k * a", "y = k * a"),
            "ASUM": ("y = k * abs(a)", "y = k * a * sign(b)"),
            "SUMSQ": ("y = k * a * a", "y = 2 * k * a * b"),
        }[operation := param.ReductionOp.Name(param.operation)]
        count = math.prod(shape[axis:])
        self.constants = {"k": param.coeff / count if operation == "MEAN" else param.coeff}
        self.axes = tuple(range(axis, len(shape)))
        self.reduced = shape[:axis] + (1,) * len(self.axes)
        return [shape[:axis]]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y, constants = bottom[0].data, top[0].data, self.constants
        program.reduce([x], y, formula=self.value, axes=self.axes, constants=constants)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = top[0].diff.view(self.reduced)
        inputs = [dy, bottom[0].data] if "b" in self.derivative else [dy]
        dx, constants = bottom[0].diff, self.constants
        program.broadcast(inputs, [dx], formula=self.derivative, constants=constants)


@register("ArgMax")
class ArgMax(Layer):
    """Where the top_k largest elements stand, and with out_max_val what they are."""

    no_gradient = (0,)

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.argmax_param, bottom[0]
        if not shape:
            self.fail("bottom", "is a single number: there is nothing to choose from")
        self.values, self.along = param.out_max_val, None
        if param.HasField("axis"):
            self.along = self.axis(param.axis, len(shape), "argmax_param.axis")
            count = shape[self.along]
        else:
            count = math.prod(shape[1:])
        if not 1 <= param.top_k <= count:
            self.fail("argmax_param.top_k", f"is {param.top_k}: it must be 1 .. {count}")
        if self.along is not None:
            return [(*shape[: self.along], param.top_k, *shape[self.along + 1 :])]
        rest = (1,) * (len(shape) - 3)
        return [(shape[0], 2 if self.values else 1, param.top_k, *rest)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        x, y = bottom[0].data, top[0].data
        if self.along is not None:
            outputs = (None, y) if self.values else (y, None)
            program.top_k(x, *outputs, axis=self.along)
            return
        x = x.view((x.shape[0], x.count // x.shape[0]))
        shape = (x.shape[0], y.shape[2])
        if not self.values:
            program.top_k(x, y.view(shape), None, axis=1)
            return
        index, value = self.tensor(shape), self.tensor(shape)
        program.top_k(x, index, value, axis=1)
        program.concat([index, value], y.view((shape[0], 2 * shape[1])), axis=1)


@register("Axpy")
class Axpy(Layer):
    """a * x + y, with one a for each channel of each item (Hu et al. 2018)."""

    bottoms = (3, 3)

    def setup(self, bottom: Shapes) -> Shapes:
        scale, x, y = bottom
        self.check_axes(x, "N x C ...", "bottom[1]")
        self.check_alike([x, y])
        if scale[:2] != x[:2] or math.prod(scale) != math.prod(x[:2]):
            self.fail("bottom[0]", f"has shape {scale}: bottom[1], {x}, needs {x[:2]}")
        self.small = (*x[:2], *(1,) * (len(x) - 2))
        return [x]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.scale = bottom[0].data.view(self.small)
        inputs = [self.scale, bottom[1].data, bottom[2].data]
        program.broadcast(inputs, [top[0].data], formula="y = a * b + c")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = top[0].diff
        if propagate_down[0]:
            axes = tuple(range(2, len(self.small)))
            reads = [dy, bottom[1].data]
            program.reduce(reads, bottom[0].diff, formula="y = a * b", axes=axes)
        if propagate_down[1]:
            program.broadcast([dy, self.scale], [bottom[1].diff], formula="y = a * b")
        if propagate_down[2]:
            program.copy(dy, bottom[2].diff)


class ByPosition(Scale):
    """bottom[0] times bottom[1], which has one number for all channels of a position."""

    bottoms = (2, 2)
    in_place = False
    along_channels, bias = False, None

    def setup(self, bottom: Shapes) -> Shapes:
        self.check_axes(bottom[0], "N x C ...", "bottom[0]")
        shape = self.broadcast_shape = (bottom[0][0], 1, *bottom[0][2:])
        self.check_count(bottom, 1, math.prod(shape), like=f": {shape}")
        self.others = (1,)
        return bottom[:1]
