"""InnerProduct, every output of which is a weighted sum of all inputs, and the layers that
show learned numbers as they are: Embed looks rows up, Parameter shows all."""

from __future__ import annotations

import math
from typing import Any

from ..base import Blobs, Flags, Layer, Program, Shape, Shapes, Tensor, register
from ..splitting import SplitProduct


@register("InnerProduct")
class InnerProduct(Layer):
    """A fully connected layer: axes from `axis` on become num_output weighted sums.

    NormFace: with normalize by the weights of each output at length 1; they are kept as they are.
    The weights may be a second bottom, whose items are the outputs', and the bias a third.
    """

    bottoms = (1, 3)
    settings: dict[str, Any]
    given: list[Shape] = []  # noqa: RUF012 (not changed)
    """Of weights and bias that are bottoms the shapes in which they are used."""

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.inner_product_param
        axis = self.axis(param.axis, len(bottom[0]), "inner_product_param.axis")
        inputs, outputs = math.prod(bottom[0][axis:]), param.num_output
        if len(bottom) > 1:
            self.check_axes(bottom[1], "outputs x ...", "bottom[1]")
            self.given = [(bottom[1][0], inputs), bottom[1][:1]][: len(bottom) - 1]
            self._check_given(bottom)
            self.settings, self.normalize = {"axis": axis, "transpose": False}, False
            return [(*bottom[0][:axis], bottom[1][0])]
        self.check_positive("inner_product_param", "num_output")
        shape = (inputs, outputs) if param.transpose else (outputs, inputs)
        self.add_parameter(shape, param.weight_filler)
        if param.bias_term:
            self.add_parameter((outputs,), param.bias_filler)
        self.settings = {"axis": axis, "transpose": param.transpose}
        self.normalize = param.normalize
        if param.normalize and param.transpose:
            self.fail("inner_product_param.normalize", "cannot be given with transpose")
        if (splitter := self.context.splitter) is not None:
            plain = axis == 1 and not (param.transpose or param.normalize)
            unfit = "" if plain else "it has transpose, normalize, or another axis than 1"
            self.is_split = splitter.splits(self, bottom[0][0], inputs, outputs, unfit)
            self.split = SplitProduct(self, splitter)
        return [(*bottom[0][:axis], outputs)]

    def _check_given(self, bottom: Shapes) -> None:
        """Refuse weights, and a bias, as bottoms that do not fit."""
        param, bias = self.param.inner_product_param, self.given[1:]
        for name in "transpose", "normalize":
            if getattr(param, name):
                self.fail(f"inner_product_param.{name}", "needs its own weights: one bottom")
        if param.bias_term != bool(bias):
            self.fail(
                "inner_product_param.bias_term", "must be false with two bottoms, true with three"
            )
        for index, shape in enumerate(self.given, 1):
            self.check_count(bottom, index, math.prod(shape))

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        if self.given:
            w, *b = (each.data.view(s) for each, s in zip(bottom[1:], self.given, strict=True))
            bias = b[0] if b else None
            program.inner_product(bottom[0].data, w, bias, top[0].data, **self.settings)
            return
        bias = self.parameters[1].data if len(self.parameters) > 1 else None
        weight, x, y = self.parameters[0].data, bottom[0].data, top[0].data
        if self.is_split:
            self.split.forward(program, x, y)
            return
        if not self.normalize:
            program.inner_product(x, weight, bias, y, **self.settings)
            return
        weight = self.rows = weight.view(weight.shape)  # row-major, as the sums of rows read it
        # Of weights of length 1 the product is that of the weights, over their length.
        self.product, self.rate = self.tensor(y.shape), self.tensor((weight.shape[0],))
        program.inner_product(x, weight, None, self.product, **self.settings)
        program.reduce([weight], self.rate, formula="y = a * a", axes=(1,))
        program.elementwise([self.rate], [self.rate], formula="y = 1 / sqrt(a + 1e-6)")
        rows = [self.product, self._row(self.rate), *([self._row(bias)] if bias else [])]
        program.broadcast(rows, [y], formula="y = a * b + c" if bias else "y = a * b")

    def _row(self, tensor: Tensor) -> Tensor:
        """One number for each output, in a shape that broadcasts to the top's."""
        return tensor.view((*(1,) * (len(self.product.shape) - 1), tensor.count))

    def _backward_rate(self, program: Program, dy: Tensor, dw: Tensor | None) -> Tensor:
        """The gradient of the product; and that part of the weights' which goes by their length."""
        slope = self.tensor(dy.shape)
        program.broadcast([dy, self._row(self.rate)], [slope], formula="y = a * b")
        if dw is not None:
            outer = tuple(range(len(dy.shape) - 1))
            drate = self.tensor(self.rate.shape)
            program.reduce([dy, self.product], drate, formula="y = a * b", axes=outer)
            columns = [tensor.view((tensor.count, 1)) for tensor in (drate, self.rate)]
            formula = "y = -(a * b * b * b) * c"
            program.reduce([*columns, self.rows], dw, formula=formula, axes=())
        return slope

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        x, dy, dw, db = bottom[0].data, top[0].diff, self.gradient(0), self.gradient(1)
        if self.given:
            self._backward_given(program, dy, propagate_down, bottom)
            return
        if self.is_split:
            self.split.backward(program, dy, bottom[0].diff if propagate_down[0] else None)
            return
        if self.normalize:
            if db is not None:
                outer = tuple(range(len(dy.shape) - 1))
                program.reduce([dy], db, formula="y = a", axes=outer)
                db = None
            dy = self._backward_rate(program, dy, dw)
        if dw is not None or db is not None:
            program.inner_product_backward_filter(x, dy, dw, db, **self.settings)
        if propagate_down[0]:
            weight = self.parameters[0].data
            program.inner_product_backward_data(dy, weight, bottom[0].diff, **self.settings)

    def _backward_given(
        self, program: Program, dy: Tensor, propagate_down: Flags, bottom: Blobs
    ) -> None:
        """The gradients of weights and bias that are bottoms are those of blobs."""
        shape = outputs, inputs = self.given[0]
        items = dy.count // outputs
        if propagate_down[0]:
            weight = bottom[1].data.view(shape)
            program.inner_product_backward_data(dy, weight, bottom[0].diff, **self.settings)
        if propagate_down[1]:
            columns, x = self.tensor((outputs, items)), bottom[0].data.view((items, inputs))
            program.permute(dy, columns, axes=(1, 0), shape=(items, outputs))
            dw = bottom[1].diff.view(shape)
            program.inner_product(columns, x, None, dw, axis=1, transpose=True)
        if any(propagate_down[2:]):
            rows, db = dy.view((items, outputs)), bottom[2].diff.view((outputs,))
            program.reduce([rows], db, formula="y = a", axes=(0,))


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
            program.gather_backward(dy, bottom[0].data, dw)
        if (db := self.gradient(1)) is not None:
            axes = range(len(dy.shape) - 1)
            program.reduce([dy], db, formula="y = a", axes=tuple(axes))


@register("Parameter")
class Parameter(Layer):
    """A learned blob as a top."""

    bottoms = (0, 0)

    def setup(self, bottom: Shapes) -> Shapes:
        shape = tuple(int(dim) for dim in self.param.parameter_param.shape.dim)
        if not shape or min(shape) < 1:
            self.fail("parameter_param.shape", f"is {shape}: it must name extents of at least 1")
        self.add_parameter(shape, self.param.parameter_param.blob_filler)
        return [shape]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.copy(self.parameters[0].data, top[0].data)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if (dw := self.gradient(0)) is not None:
            program.reduce([top[0].diff], dw, formula="y = a", axes=())
