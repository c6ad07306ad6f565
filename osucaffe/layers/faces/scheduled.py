"""Owns layers with a number that changes from pass to pass, such as a margin that grows."""

from __future__ import annotations

from ...data.ahead.pipeline import allocate
from ..base import Layer, Program, Tensor


class Changing(Layer):
    """A layer whose `number` the host brings before each pass; `iteration` counts them."""

    iteration = 0

    @property
    def number(self) -> float:
        """What counts in the next pass."""
        raise NotImplementedError

    def bring(self, program: Program) -> Tensor:
        """Record what brings the number. Returns where it will be."""
        self._buffer, fed, number = allocate((1,)), self.tensor((1,)), self.tensor((1,))
        program.host([], [fed], function=lambda: self._feed(fed), feed=True)
        program.copy(fed, number)  # what is fed is float32, whatever the net computes in
        return number

    def _feed(self, fed: Tensor) -> None:
        self._buffer.array[...] = self.number
        self.iteration += 1
        fed.place(self._buffer.flat, self._buffer.address)
