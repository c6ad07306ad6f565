"""The layers that run over time: LSTM, RNN, and LSTMUnit, a single step of the former."""

from __future__ import annotations

import math
from typing import Any

from ..base import Blobs, Count, Flags, Layer, Program, Shapes, Tensor, register

LSTM_FORMULA = (
    "x0 = 1 / (1 + exp(-x0)); x1 = 1 / (1 + exp(-x1)); x2 = 1 / (1 + exp(-x2)); x3 = tanh(x3);"
    "c = keep * x1 * c_in + x0 * x3; h = x2 * tanh(c)"
)
"""The cell of Zaremba & Sutskever 2014; x0 ... x3: input, forget, output gate and new content.

The gates are kept as what they let through, so that the gradients need none of these functions.
"""

LSTM_DERIVATIVE = (
    "s = tanh(c); p = dh * x2; d = dc + p * (1 - s * s); e = d * x0; k = d * keep * x1;"
    "dx0 = e * x3 * (1 - x0); dx1 = k * c_in * (1 - x1); dx2 = p * s * (1 - x2);"
    "dx3 = e * (1 - x3 * x3); dc = k"
)
RNN_FORMULA = "x0 = tanh(x0); h = x0"
RNN_DERIVATIVE = "dx0 = dh * (1 - x0 * x0)"


class Recurrent(Layer):
    """What LSTM and RNN share: x (T, N, ...), how much of the state to keep (T, N), and weights.

    Bottoms: x, keep, perhaps a static input (N, ...) to every step, and with expose_hidden the
    states before the first step; those after the last are tops then. Without it, the states live
    on from one forward pass to the next.
    """

    tops: Count = (1, None)
    no_gradient = (1,)
    messages: tuple[str, ...] = ("recurrent_param",)
    parts: int
    """How many gates a cell has."""
    states: int
    """How many states it carries: h, or h and c."""
    formula: str
    derivative: str
    bias_index = 1
    """Where the bias stands among the parameters."""

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.recurrent_param
        self.size, self.exposed = param.num_output, param.expose_hidden
        self.check_positive("recurrent_param", "num_output")
        given = self.states if self.exposed else 0
        if len(bottom) not in (2 + given, 3 + given):
            self.fail("bottom", f"needs {2 + given} or, with a static input, {3 + given}")
        if len(self.param.top) != 1 + given:
            self.fail("top", f"needs {1 + given}")
        x = bottom[0]
        self.check_axes(x, "T x N ...", "bottom[0]")
        self.check_bottom(bottom, 1, x[:2], f", as x is {x}")
        steps, items = x[:2]
        gates = self.parts * self.size
        self.add_parameter((gates, math.prod(x[2:])), param.weight_filler)
        self.add_parameter((gates,), param.bias_filler)
        self.static = len(bottom) == 3 + given
        if self.static:
            if not bottom[2] or bottom[2][0] != items:
                self.fail("bottom[2]", f"has shape {bottom[2]}, but must be {items} x ...")
            self.add_parameter((gates, math.prod(bottom[2][1:])), param.weight_filler)
        self.recurrent_index = len(self.parameters)
        self.add_parameter((gates, self.size), param.weight_filler)
        state = (1, items, self.size)
        for i in range(len(bottom) - given, len(bottom)):
            self.check_bottom(bottom, i, state)
        return [(steps, items, self.size), *[state] * given]

    # -- the states before the first and after the last step -----------------------------------

    def first_states(self, program: Program, bottom: Blobs) -> list[Tensor]:
        """The states before the first step, (N, D) each."""
        if self.exposed:
            return [self.flat(blob.data) for blob in bottom[len(bottom) - self.states :]]
        shape = (bottom[0].shape[1], self.size)
        self.carried = [self.tensor(shape, persistent=True) for _ in range(self.states)]
        first = [self.tensor(shape) for _ in range(self.states)]
        for carried, state in zip(self.carried, first, strict=True):
            program.copy(carried, state)
        return first

    def last_states(self, program: Program, tensors: list[Tensor], top: Blobs) -> None:
        """Hand on the last step of h (and c)."""
        targets = self.carried if not self.exposed else [self.flat(b.data) for b in top[1:]]
        for tensor, target in zip(tensors, targets, strict=True):
            steps, items, size = tensor.shape
            last = (1, items, size)
            program.crop(tensor, target.view(last), offsets=(steps - 1, 0, 0))

    def flat(self, tensor: Tensor) -> Tensor:
        """A state (1, N, D) as (N, D)."""
        return tensor.view(tensor.shape[1:])

    # -- forward and backward --------------------------------------------------------------------

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.forward_to(program, top[0].data, bottom, top)

    def forward_to(self, program: Program, h: Tensor, bottom: Blobs, top: Blobs) -> None:
        """Compute h, and the states after the last step."""
        steps, items = bottom[0].shape[:2]
        wide = (steps, items, self.parts * self.size)
        # The products with the inputs of all steps at once: only the states must wait.
        self.gates = self.tensor(wide, flexible=True)
        self.product(program, bottom[0].data, self.gates, 0, self.bias_index)
        if self.static:
            static = self.tensor(wide[1:])
            self.product(program, bottom[2].data, static, 2)
            inputs = [self.gates, static.view((1, *wide[1:]))]
            program.broadcast(inputs, [self.gates], formula="y = a + b")
        self.first = self.first_states(program, bottom)
        self.h_in = self.tensor((steps, items, self.size), flexible=True)
        self.c = self.tensor(h.shape) if self.states > 1 else None
        program.recurrent(
            self.gates, bottom[1].data, self.parameters[self.recurrent_index].data, self.first[0],
            self.first[1] if self.states > 1 else None,
            self.gates, self.h_in, h, self.c, formula=self.formula,
        )  # fmt: skip
        self.last_states(program, [h] if self.c is None else [h, self.c], top)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        self.backward_from(program, top[0].diff, top, propagate_down, bottom)

    def backward_from(
        self, program: Program, dh: Tensor, top: Blobs, propagate_down: Flags, bottom: Blobs
    ) -> None:
        """All gradients from that of h."""
        last: list[Tensor | None] = [None, None]
        first: list[Tensor | None] = [None, None]
        if self.exposed:
            last[: self.states] = [self.flat(blob.diff) for blob in top[1:]]
            for i, position in enumerate(range(len(bottom) - self.states, len(bottom))):
                if propagate_down[position]:
                    first[i] = self.flat(bottom[position].diff)
        dgates = self.tensor(self.gates.shape, flexible=True)
        program.recurrent_backward(
            bottom[1].data, self.parameters[self.recurrent_index].data,
            self.first[1] if self.states > 1 else None,
            self.gates, self.c, dh, last[0], last[1], dgates, first[0], first[1],
            formula=self.derivative,
        )  # fmt: skip
        self.backward_product(program, self.h_in, dgates, self.recurrent_index)
        dx = bottom[0].diff if propagate_down[0] else None
        self.backward_product(program, bottom[0].data, dgates, 0, dx, bias=self.bias_index)
        if self.static:  # it takes part in every step
            dx = bottom[2].diff if propagate_down[2] else None
            if dx is None and self.gradient(2) is None:
                return
            static = self.tensor(dgates.shape[1:])
            program.reduce([dgates], static, formula="y = a", axes=(0,))
            self.backward_product(program, bottom[2].data, static, 2, dx)

    def product(
        self, program: Program, x: Tensor, y: Tensor, weight: int, bias: int | None = None
    ) -> None:
        """y = x times the parameter `weight` plus the parameter `bias`, along y's last axis."""
        matrix = self.parameters[weight].data
        offsets = None if bias is None else self.parameters[bias].data
        program.inner_product(x, matrix, offsets, y, axis=len(y.shape) - 1, transpose=False)

    def backward_product(
        self, program: Program, x: Tensor, dy: Tensor, weight: int, dx: Tensor | None = None,
        bias: int | None = None,
    ) -> None:  # fmt: skip
        """The gradients of `product`; that of x where dx is given."""
        settings: dict[str, Any] = {"axis": len(dy.shape) - 1, "transpose": False}
        dw, db = self.gradient(weight), None if bias is None else self.gradient(bias)
        if dw is not None or db is not None:
            program.inner_product_backward_filter(x, dy, dw, db, **settings)
        if dx is not None:
            matrix = self.parameters[weight].data
            program.inner_product_backward_data(dy, matrix, dx, **settings)


@register("LSTM")
class LSTM(Recurrent):
    """A layer of LSTM cells, unrolled over the first axis (Donahue et al. 2015)."""

    bottoms = (2, 5)
    parts, states = 4, 2
    formula, derivative = LSTM_FORMULA, LSTM_DERIVATIVE


@register("RNN")
class RNN(Recurrent):
    """h = tanh(W_xh x + W_hh h + b_h), put out as tanh(W_ho h + b_o), unrolled over time."""

    bottoms = (2, 4)
    parts, states = 1, 1
    formula, derivative = RNN_FORMULA, RNN_DERIVATIVE

    def setup(self, bottom: Shapes) -> Shapes:
        tops = super().setup(bottom)
        param = self.param.recurrent_param
        self.add_parameter((self.size, self.size), param.weight_filler)
        self.add_parameter((self.size,), param.bias_filler)
        return tops

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        y, index = top[0].data, len(self.parameters) - 2
        self.h = self.tensor(y.shape, flexible=True)
        self.forward_to(program, self.h, bottom, top)
        self.product(program, self.h, y, index, index + 1)
        program.elementwise([y], [y], formula="y = tanh(a)")

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        product, dh = (self.tensor(top[0].shape, flexible=True) for _ in range(2))
        inputs = [top[0].diff, top[0].data]
        program.elementwise(inputs, [product], formula="y = a * (1 - b * b)")
        index = len(self.parameters) - 2
        self.backward_product(program, self.h, product, index, dh, bias=index + 1)
        self.backward_from(program, dh, top, propagate_down, bottom)


@register("LSTMUnit")
class LSTMUnit(Layer):
    """One step of LSTM cells: from c, the gates and what to keep of c, the next c and h."""

    bottoms = (3, 3)
    tops = (2, 2)
    no_gradient = (2,)

    def setup(self, bottom: Shapes) -> Shapes:
        c = bottom[0]
        self.check_axes(c, "1 x N x D", "bottom[0]")
        for i, shape in enumerate([(1, *c[1:]), (1, c[1], 4 * c[2]), (1, c[1])]):
            self.check_bottom(bottom, i, shape)
        return [c, c]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        c_first, gates, keep = (blob.data for blob in bottom)
        c, h = (blob.data for blob in top)
        self.c_first, self.gates = c_first.view(c.shape[1:]), self.tensor(gates.shape)
        program.recurrent(
            gates, keep, None, None, self.c_first, self.gates, None, h, c, formula=LSTM_FORMULA
        )

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        if not any(propagate_down[:2]):
            return
        c, dc_last, dh = top[0].data, top[0].diff.view(top[0].shape[1:]), top[1].diff
        dgates = bottom[1].diff if propagate_down[1] else self.tensor(self.gates.shape)
        dc_first = bottom[0].diff.view(self.c_first.shape) if propagate_down[0] else None
        program.recurrent_backward(
            bottom[2].data, None, self.c_first, self.gates, c,
            dh, None, dc_last, dgates, None, dc_first, formula=LSTM_DERIVATIVE,
        )  # fmt: skip
