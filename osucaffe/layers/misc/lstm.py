"""Owns Lstm: cells of LSTM over sequences that lie behind one another (junhyukoh/caffe-lstm)."""

from __future__ import annotations

import math

import numpy as np

from ..base import Blob, Blobs, Count, Flags, Program, Shapes, Tensor, register
from ..core.recurrent import LSTM_DERIVATIVE, LSTM_FORMULA, Recurrent


@register("Lstm")
class Lstm(Recurrent):
    """LSTM cells over x (T * batch_size, ...): steps of batch_size sequences, one after another.

    A second bottom (T * batch_size): 0 where a sequence begins. With it, states live on from one
    forward pass to the next; without, all sequences begin with the pass. clipping_threshold
    bounds the gradients of what the gates are given.
    """

    bottoms: Count = (1, 2)
    tops: Count = (1, 1)
    messages = ("lstm_param",)
    parts, states = 4, 2
    exposed = static = False
    recurrent_index, bias_index = 1, 2
    formula = LSTM_FORMULA

    def setup(self, bottom: Shapes) -> Shapes:
        param, x = self.param.lstm_param, bottom[0]
        self.size, items = param.num_output, param.batch_size
        self.check_positive("lstm_param", "num_output", "batch_size")
        if x[0] % items:
            self.fail("lstm_param.batch_size", f"is {items}, but x is {x}: it must divide {x[0]}")
        if len(bottom) > 1 and math.prod(bottom[1]) != x[0]:
            self.fail("bottom[1]", f"has shape {bottom[1]}, but x, which is {x}, needs {x[0]}")
        self.steps, inputs = (x[0] // items, items), math.prod(x[1:])
        for shape in ((4 * self.size, inputs), (4 * self.size, self.size)):
            self.add_parameter(shape, param.weight_filler)
        self.add_parameter((4 * self.size,), param.bias_filler)
        self.derivative, most = LSTM_DERIVATIVE, param.clipping_threshold
        if most > 0:
            names = [f"dx{i}" for i in range(4)]
            bounds = [f"{name} = max(-{most!r}, min({most!r}, {name}))" for name in names]
            self.derivative = ";".join([LSTM_DERIVATIVE, *bounds])
        self.keep = self.tensor(self.steps, persistent=True)
        if len(bottom) < 2:
            later = np.ones(self.steps, np.float32)
            later[0] = 0
            self.initial = [(self.keep, later)]
        return [(x[0], self.size)]

    def _over_time(self, blob: Blob, extent: int) -> Blob:
        """A bottom or top as (T, batch_size, extent)."""
        seen = Blob(blob.name, (*self.steps, extent))
        seen.data, seen.diff = (each.view(seen.shape) for each in (blob.data, blob.diff))
        return seen

    def _seen(self, bottom: Blobs, top: Blobs) -> tuple[Blobs, Blobs]:
        keep = Blob(f"{self.name}.keep", self.steps)
        keep.data = bottom[1].data.view(self.steps) if len(bottom) > 1 else self.keep
        x = self._over_time(bottom[0], bottom[0].data.count // math.prod(self.steps))
        return [x, keep], [self._over_time(top[0], self.size)]

    def first_states(self, program: Program, bottom: Blobs) -> list[Tensor]:
        if len(self.param.bottom) > 1:
            return super().first_states(program, bottom)
        first = [self.tensor((self.steps[1], self.size)) for _ in range(self.states)]
        for state in first:
            program.fill(state, value=0.0)
        return first

    def last_states(self, program: Program, tensors: list[Tensor], top: Blobs) -> None:
        if len(self.param.bottom) > 1:
            super().last_states(program, tensors, top)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        super().forward(program, *self._seen(bottom, top))

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        bottoms, tops = self._seen(bottom, top)
        super().backward(program, tops, propagate_down, bottoms)
