"""The update of a net's parameters: the history buffers, the run-time scalars, the steps.

The update applies to the master weights: the arena's, in fp32 whatever the precision of the run. A
backend that computes in bf16 or fp16 has copies, and refreshes these with each update.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...arena import Buffer
from ...backends.backend import Backend
from ...backends.primitives import Program, solvers
from ...backends.primitives.recording import Primitive
from ...backends.rows_ahead import RowsAhead
from ...backends.tensor import Run, Tensor
from ...layers.base import Splitter
from ...net import Net
from .loss_scaling import LossScale
from .rules import Update

logger = logging.getLogger("osucaffe")

Ahead = Callable[[int, int], list[float]]
_RATES_AHEAD = 256


class Optimizer:
    """One pass over the arena per iteration; prepared once, then only replayed.

    history[k][i]: the k-th history buffer of net.parameters[i], of the parameter's shape and in
    its memory layout.
    """

    def __init__(
        self, net: Net, update: Update, backend: Backend, scale: LossScale | None = None
    ) -> None:
        self._backend = backend
        self.update = update
        arena = net.arena
        self._arena = arena
        self._buffers = [
            Buffer(arena, backend, f"history{number}", net.parameters)
            for number in range(update.histories)
        ]
        self.history = [buffer.parts for buffer in self._buffers]
        self.flats = [buffer.flat for buffer in self._buffers]
        # Contiguous, in the order of the update's scalars; each is written by its owner.
        self._scalars = scalars = Tensor((len(update.names),), name="scalars", persistent=True)
        memory = backend.allocate_for(scalars)
        backend.write(scalars, 0)
        given = len(update.row(0, 0))
        self._given = Tensor((given,), name="learning_rate", persistent=True)
        self._place(self._given, scalars, memory, update.names.index("lr"))
        uploads = backend.uploads()
        self._ahead = RowsAhead(uploads, (given,), "float32", _RATES_AHEAD, "learning rates")
        self._ahead.place(backend)
        self._rows: list[list[float]] = []
        """The values that the steps read next from `_ahead`, in reverse."""
        program = Program()
        program.next_row(self._ahead.table, self._ahead.cursor, self._given)
        self.take_rate: Run = self.prepare(program.calls.pop())
        """Passes the rate from `set_rate` to the other steps: once per iteration, before them."""
        self.rate = math.nan
        """The last learning rate from `set_rate`, with the rule's factor."""
        self.squares: Tensor | None = None
        """The sum of squares, written by the first of the steps, if the others need it."""
        if "squares" in update.names:
            self.squares = squares = Tensor((1,), name="squares", persistent=True)
            self._place(squares, scalars, memory, update.names.index("squares"))
            self._sum_squares(program, squares, net.splitter)
        if scale:
            values = scale.read()
            self._place(scale.factor, scalars, memory, update.names.index("scale"))
            scale.write(values)
        self._direction: Tensor | None = None
        if update.step:
            self._direction = Buffer(arena, backend, "direction", net.parameters).flat
        self._record(program, 0, len(arena))
        if scale:
            program.add(scale.change(squares))
        self.steps: list[Run] = [self.prepare(call) for call in program.calls]
        """What `run` runs after `take_rate`."""
        self.separable = update.separable

    def _sum_squares(self, program: Program, squares: Tensor, splitter: Splitter | None) -> None:
        """Record the sum over all gradients. Where parameters are divided among ranks, it needs a
        sum over these, of which the first alone counts what all have."""
        arena, gradients = self._arena, self._arena.diff
        if splitter is None or not arena.is_split:
            program.sum_of_squares(gradients, squares.view(()))
            return
        if splitter.comm.rank:
            gradients = gradients.view((arena.learned - arena.shared,), arena.shared)
        program.sum_of_squares(gradients, squares.view(()))
        program.collective(squares, splitter.comm.all_reduce, splitter.blocks)

    def part(self, start: int, stop: int) -> Run:
        """A step like those of a `separable` update, of the arena's elements start .. stop - 1."""
        program = Program()
        self._record(program, start, stop)
        match program.calls:
            case [solvers.Update(segments=[_, *_]) as call]:
                return self.prepare(call)
        return lambda: None

    def _record(self, program: Program, first: int, last: int) -> None:
        """Record the update of the arena's elements first .. last - 1."""
        data, gradients, sums, history = self._arena.data, self._arena.diff, None, self.flats
        segments = [
            (start, stop, parameter.lr_mult, parameter.decay_mult)
            for start, stop, parameter in self._arena.owned(first, last)
            if parameter.lr_mult
        ]
        names, constants = self.update.names, self.update.constants
        record = partial(program.update, names=names, segments=segments, constants=constants)
        formula, scalars = self.update.formula, self._scalars
        if self._direction is not None:
            record(self._direction, gradients, history, scalars, formula=formula)
            gradients, history, formula = self._direction, [], self.update.step
        if self.update.sums:
            if not segments:
                return
            sums = Tensor((3 * len(segments),), name="sums", persistent=True)
            self._backend.allocate_for(sums)
            program.segment_sums(data, gradients, sums, segments=[each[:2] for each in segments])
        record(data, gradients, history, scalars, formula=formula, sums=sums)

    def step(self, learning_rate: float, iteration: int) -> None:
        """Update every parameter from its gradient, which is not changed."""
        self.set_rate(learning_rate, iteration)
        self.run()

    def run(self) -> None:
        """Make the update, with the rate just given to `set_rate`."""
        self.take_rate()
        for step in self.steps:
            step()

    def set_rate(
        self, learning_rate: float, iteration: int, ahead: Ahead = lambda iteration, count: []
    ) -> None:
        """Pass what changes from iteration to iteration to the steps: once before each update.

        ahead: gives up to `count` learning rates from an iteration on, as far as they are known:
        these are uploaded together, unless a different one is set.
        """
        row = self.update.row(learning_rate, iteration)
        self.rate = row[0]
        if not self._rows or self._rows[-1] != row:
            known = ahead(iteration + 1, self._ahead.most - 1)
            rows = [row, *map(self.update.row, known, itertools.count(iteration + 1))]
            self._ahead.write(np.array(rows, np.float32))
            self._rows = rows[::-1]
        self._rows.pop()

    def read_history(self) -> list[np.ndarray]:
        """All history, in Caffe's order: the first buffer of every parameter, then the second."""
        return [array for buffer in self._buffers for array in buffer.read()]

    def write_history(self, values: list[np.ndarray]) -> None:
        """The reverse of `read_history`; the arrays have the parameters' shapes."""
        count = len(values) // max(1, len(self._buffers))
        for number, buffer in enumerate(self._buffers):
            buffer.write(values[number * count : (number + 1) * count])

    def log_clipping(self, limit: float) -> None:
        """Log it if the last step scaled its gradients down to this L2 norm."""
        scalars = dict(zip(self.update.names, self._backend.read(self._scalars), strict=True))
        norm = math.sqrt(scalars["squares"]) / scalars.get("scale", 1)
        if norm > limit:
            logger.info(
                "Gradient clipping: scaling down gradients (L2 norm %g > %g) by scale factor %g",
                norm,
                limit,
                limit / norm,
            )

    def _place(self, part: Tensor, flat: Tensor, memory: Any, start: int) -> None:
        """Place a tensor in a flat buffer, from this element on."""
        self._backend.place(part, memory, start * (self._backend.nbytes(flat) // flat.size))

    def prepare(self, call: Primitive) -> Run:
        """The step that runs a call, with scratch of its own."""
        step: Run
        [step] = self._backend.prepare([call])
        for tensor in call.scratch:
            self._backend.allocate_for(tensor)
        return step
