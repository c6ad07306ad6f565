"""Owns InnerProduct, every output of which is a weighted sum of all inputs, and the layers that
show learned numbers as they are: Embed looks rows up, Parameter shows all."""

from __future__ import annotations

import math
from typing import Any

from ..base import Blobs, Flags, Layer, Program, Shapes, Tensor, register


@register("InnerProduct")
class InnerProduct(Layer):
    """A fully connected layer: axes from `axis` on become num_output weighted sums.

    normalize (NormFace): by the weights of each output at length 1; they are kept as they are.
    """

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.inner_product_param
        axis = self.axis(param.axis, len(bottom[0]), "inner_product_param.axis")
        self.check_positive("inner_product_param", "num_output")
        inputs, outputs = math.prod(bottom[0][axis:]), param.num_output
        shape = (inputs, outputs) if param.transpose else (outputs, inputs)
        self.add_parameter(shape, param.weight_filler)
        if param.bias_term:
            self.add_parameter((outputs,), param.bias_filler)
        self.settings: dict[str, Any] = {"axis": axis, "transpose": param.transpose}
        self.normalize = param.normalize
        if param.normalize and param.transpose:
            self.fail("inner_product_param.normalize", "cannot be given with transpose")
        if self.splitter is not None:
            plain = axis == 1 and not (param.transpose or param.normalize)
            unfit = "" if plain else "it has transpose, normalize, or another axis than 1"
            self.comm = self.splitter.comm
            self.is_split = self.splitter.splits(self, bottom[0][0], inputs, outputs, unfit)
        return [(*bottom[0][:axis], outputs)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        bias = self.parameters[1].data if len(self.parameters) > 1 else None
        weight, x, y = self.parameters[0].data, bottom[0].data, top[0].data
        if self.is_split:
            self._forward_split(program, x, y)
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
            program.reduce_gradient([*columns, self.rows], dw, formula=formula, axes=())
        return slope

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        x, dy, dw, db = bottom[0].data, top[0].diff, self.gradient(0), self.gradient(1)
        if self.is_split:
            self._backward_split(program, dy, bottom[0].diff if propagate_down[0] else None)
            return
        if self.normalize:
            if db is not None:
                outer = tuple(range(len(dy.shape) - 1))
                program.reduce_gradient([dy], db, formula="y = a", axes=outer)
                db = None
            dy = self._backward_rate(program, dy, dw)
        if dw is not None or db is not None:
            program.inner_product_backward_filter(x, dy, dw, db, **self.settings)
        if propagate_down[0]:
            weight = self.parameters[0].data
            program.inner_product_backward_data(dy, weight, bottom[0].diff, **self.settings)

    # -- divided among ranks (Krizhevsky, arXiv 1404.5997) ----------------------------------------
    # This rank computes its part of the outputs, with its part of the weights, for all ranks' rows.

    def _forward_split(self, program: Program, x: Tensor, y: Tensor) -> None:
        weight, *bias = (self._own(parameter.data) for parameter in self.parameters)
        gathered = self.gathered = self.tensor((self.comm.size * x.shape[0], *x.shape[1:]))
        program.copy(x, self._own(gathered))
        self._together(program, gathered, "all_gather")
        swapped, made, came = self._swap_space(y)
        product = made.view((gathered.shape[0], weight.shape[0]))
        program.inner_product(gathered, weight, bias[0] if bias else None, product, **self.settings)
        self._swap(program, swapped, made, came)
        program.permute(came, self._by_rank(y), axes=(1, 0, 2))

    def _backward_split(self, program: Program, dy: Tensor, dx: Tensor | None) -> None:
        weight, gathered = self._own(self.parameters[0].data), self.gathered
        dw, db = (diff and self._own(diff) for diff in (self.gradient(0), self.gradient(1)))
        swapped, given, came = self._swap_space(dy)
        program.permute(self._by_rank(dy), given, axes=(1, 0, 2))
        self._swap(program, swapped, given, came)
        dproduct = came.view((gathered.shape[0], weight.shape[0]))
        if dw is not None or db is not None:
            program.inner_product_backward_filter(gathered, dproduct, dw, db, **self.settings)
        if dx is not None:
            total = self.tensor(gathered.shape)
            program.inner_product_backward_data(dproduct, weight, total, **self.settings)
            self._together(program, total, "reduce_scatter")
            program.copy(self._own(total), dx)

    def _own(self, tensor: Tensor) -> Tensor:
        """This rank's part, along the first axis."""
        shape = (tensor.shape[0] // self.comm.size, *tensor.shape[1:])
        return tensor.view(shape, self.comm.part(tensor.count)[0])

    def _by_rank(self, y: Tensor) -> Tensor:
        """The top with its outputs cut into the ranks' parts: rows x ranks x outputs."""
        return y.view((y.shape[0], self.comm.size, y.shape[1] // self.comm.size))

    def _swap_space(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Memory for an all-to-all, and its halves as ranks x rows x outputs: what this rank has
        for each of them, and what comes from each."""
        rows, ranks, outputs = self._by_rank(y).shape
        shape = (ranks, rows, outputs)
        both = self.tensor((2, *shape))
        return both, both.view(shape), both.view(shape, y.count)

    def _swap(self, program: Program, both: Tensor, made: Tensor, came: Tensor) -> None:
        program.copy(self._own(made), self._own(came))
        self._together(program, both, "all_to_all")

    def _together(self, program: Program, tensor: Tensor, operation: str) -> None:
        assert self.splitter is not None
        program.collective(tensor, getattr(self.comm, operation), self.splitter.blocks)


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
