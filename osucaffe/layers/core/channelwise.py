"""The layers that use one learned number for each channel: Scale, Bias, PReLU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...backends.formula import PRELU
from ...proto.caffe_pb2 import ScaleParameter
from ..base import Blobs, Flags, Layer, Program, Shape, Shapes, Tensor, pass_on, register

LARGEST = float(np.finfo(np.float32).max)
WITHIN = "y = max(least, min(most, a))"


class Broadcast(Layer):
    """What the three share: a small tensor whose axes lie along some axes of the bottom.

    It is a parameter or, where the layer has a second bottom, that bottom.
    """

    in_place = True

    def lay_out(self, dimensions: int, axis: int, shape: Shape) -> None:
        """The tensor of this shape lies along the axes from `axis` on."""
        self.along_channels = axis == 1 == len(shape)
        """Whether there is a number for each channel."""
        self.broadcast_shape = (1,) * axis + shape + (1,) * (dimensions - axis - len(shape))
        along = range(axis, axis + len(shape))
        self.others = tuple(i for i in range(dimensions) if i not in along)

    def read_operand(self, bottom: Shapes, param: Any, field: str) -> Shape | None:
        """Lay out the second bottom, or what `axis` and `num_axes` say; the latter's shape."""
        first = bottom[0]
        if len(bottom) > 1:
            # A scalar has no axes to lie anywhere.
            axis = self.axis(param.axis, len(first), f"{field}.axis") if bottom[1] else 0
            if first[axis : axis + len(bottom[1])] != bottom[1]:
                self.fail("bottom[1]", f"{bottom[1]} does not match {first} from axis {axis} on")
            self.lay_out(len(first), axis, bottom[1])
            return None
        axis = self.axis(param.axis, len(first), f"{field}.axis") if param.num_axes else 0
        stop = len(first) if param.num_axes == -1 else axis + param.num_axes
        if param.num_axes < -1 or stop > len(first):
            self.fail(f"{field}.num_axes", f"{param.num_axes} from axis {axis} exceed {first}")
        self.lay_out(len(first), axis, first[axis:stop])
        return first[axis:stop]

    def operand(self, bottom: Blobs) -> Tensor:
        """The second bottom, or the parameter in its place, with as many axes as the bottom."""
        return self.broadcast((bottom[1] if len(bottom) > 1 else self.parameters[0]).data)

    def backward_operand(
        self, program: Program, inputs: list[Tensor], formula: str, propagate_down: Flags,
        bottom: Blobs,
    ) -> None:  # fmt: skip
        """The gradient of `operand`: sums of the formula."""
        if len(bottom) == 1:
            if (dw := self.gradient(0)) is not None:
                program.reduce(inputs, dw, formula=formula, axes=self.others)
        elif propagate_down[1]:
            dw = self.broadcast(bottom[1].diff)
            program.reduce(inputs, dw, formula=formula, axes=self.others)

    def broadcast(self, tensor: Tensor) -> Tensor:
        """The small tensor with as many axes as the bottom."""
        return tensor.view(self.broadcast_shape)


@register("Scale")
class Scale(Broadcast):
    """y = x * scale (+ bias), with the scale learned or given by a second bottom.

    A learned one stays from min_value to max_value, where they are given.
    """

    bottoms = (1, 2)
    bounds: dict[str, float] | None = None

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.scale_param
        shape = self.read_operand(bottom, param, "scale_param")
        if shape is not None:
            self.add_parameter(shape, param.filler if param.HasField("filler") else None, 1)
        self.bounds = bounds_of(param)
        if self.bounds:
            self.along_channels = False  # so that what reads the scale comes after the bounds
            if shape is None:
                self.fail("scale_param", "min_value and max_value need a learned scale: one bottom")
        self.bias = len(self.parameters) if param.bias_term else None
        if param.bias_term:
            self.add_parameter(bottom[1] if shape is None else shape, param.bias_filler)
        return [bottom[0]]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.saved = self.saved_input(program, bottom, top)
        if self.bounds:
            scale = [self.parameters[0].data]
            program.elementwise(scale, scale, formula=WITHIN, constants=self.bounds)
        self.derived = self.along_channels and len(bottom) == 1
        if self.derived:  # batch normalization without statistics
            bias = None if self.bias is None else self.parameters[self.bias].data
            program.batch_norm(
                self.saved, None, None, self.parameters[0].data, bias, None, top[0].data
            )
            return
        self.scale = self.operand(bottom)
        inputs = [bottom[0].data, self.scale]
        if self.bias is not None:
            inputs.append(self.broadcast(self.parameters[self.bias].data))
        formula = "y = a * b" if self.bias is None else "y = a * b + c"
        program.broadcast(inputs, [top[0].data], formula=formula)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if self.derived:
            return
        dy = top[0].diff
        db = None if self.bias is None else self.gradient(self.bias)
        if db is not None:
            program.reduce([dy], db, formula="y = a", axes=self.others)
        self.backward_operand(program, [dy, self.saved], "y = a * b", propagate_down, bottom)
        if propagate_down[0]:
            program.broadcast([dy, self.scale], [bottom[0].diff], formula="y = a * b")


def bounds_of(param: ScaleParameter) -> dict[str, float]:
    """The bounds of a learned scale, as constants of WITHIN; none where it has no bound."""
    fields = {"least": "min_value", "most": "max_value"}
    if not any(map(param.HasField, fields.values())):
        return {}
    far = {"least": -LARGEST, "most": LARGEST}
    return {
        name: getattr(param, field) if param.HasField(field) else far[name]
        for name, field in fields.items()
    }


@register("Bias")
class Bias(Broadcast):
    """y = x + bias, with the bias learned or given by a second bottom."""

    bottoms = (1, 2)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.bias_param
        shape = self.read_operand(bottom, param, "bias_param")
        if shape is not None:
            self.add_parameter(shape, param.filler)
        return [bottom[0]]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.broadcast(
            [bottom[0].data, self.operand(bottom)], [top[0].data], formula="y = a + b"
        )

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = top[0].diff
        self.backward_operand(program, [dy], "y = a", propagate_down, bottom)
        if propagate_down[0]:
            pass_on(program, dy, bottom[0].diff)


@register("PReLU")
class PReLU(Broadcast):
    """y = x where it is positive, else a learned slope * x (He et al. 2015)."""

    def setup(self, bottom: Shapes) -> Shapes:
        param, shape = self.param.prelu_param, bottom[0]
        self.check_axes(shape, "N x C ...")
        slopes = () if param.channel_shared else (shape[1],)
        self.lay_out(len(shape), 0 if param.channel_shared else 1, slopes)
        self.add_parameter(slopes, param.filler if param.HasField("filler") else None, 0.25)
        return bottom

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.saved = self.saved_input(program, bottom, top)
        self.slope = self.broadcast(self.parameters[0].data)
        program.broadcast([bottom[0].data, self.slope], [top[0].data], formula=PRELU)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = top[0].diff
        if (dw := self.gradient(0)) is not None:
            formula = "y = where(b > 0, 0, a * b)"
            program.reduce([dy, self.saved], dw, formula=formula, axes=self.others)
        if propagate_down[0]:
            formula = "y = where(b > 0, a, a * c)"
            program.broadcast([dy, self.saved, self.slope], [bottom[0].diff], formula=formula)
