"""Owns the layers that stand for their own parameters: Embed looks rows up, Parameter shows all."""

from __future__ import annotations

from ..base import Blobs, Flags, Layer, Program, Shapes, register


@register("Embed")
class Embed(Layer):
    """For each whole number below input_dim, a learned vector of num_output elements."""

    no_gradient = (0,)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.embed_param
        self.check_positive("embed_param", "num_output", "input_dim")
        self.add_parameter((param.input_dim, param.num_output), param.weight_filler)
        if param.bias_term:
            self.add_parameter((param.num_output,), param.bias_filler)
        return [(*bottom[0], param.num_output)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        y = top[0].data
        program.gather(self.parameters[0].data, bottom[0].data, y)
        if len(self.parameters) > 1:
            bias = self.parameters[1].data.view((*[1] * (len(y.shape) - 1), y.shape[-1]))
            program.broadcast([y, bias], [y], formula="y = a + b")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        dy = top[0].diff
        if (dw := self.gradient(0)) is not None:
            program.gather_gradient(dy, bottom[0].data, dw)
        if (db := self.gradient(1)) is not None:
            axes = range(len(dy.shape) - 1)
            program.reduce_gradient([dy], db, formula="y = a", axes=tuple(axes))


@register("Parameter")
class Parameter(Layer):
    """A learned blob as a top."""

    bottoms = (0, 0)

    def setup(self, bottom: Shapes) -> Shapes:
        shape = tuple(int(dim) for dim in self.param.parameter_param.shape.dim)
        if not shape or min(shape) < 1:
            self.fail("parameter_param.shape", f"is {shape}: it must name extents of at least 1")
        self.add_parameter(shape)
        return [shape]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.copy(self.parameters[0].data, top[0].data)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if (dw := self.gradient(0)) is not None:
            program.reduce_gradient([top[0].diff], dw, formula="y = a", axes=())
