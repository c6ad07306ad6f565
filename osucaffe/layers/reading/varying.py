"""Owns streams whose images have any size: they come one at a time, and the net follows them."""

from __future__ import annotations

import numpy as np

from ...data.ahead.pipeline import Buffer, allocate
from ..base import Reshaped, Shapes
from .feed import Stream


class Varying(Stream):
    """A stream that, where it `reshapes`, brings one item at a time, of any shape.

    `shapes`, those of what came last, are then what `setup` goes by.
    """

    shapes: Shapes
    _waiting: list[Buffer] | None = None
    _place = 0

    def one(self, position: int) -> list[np.ndarray]:
        """The item of the stream at this position, as batches of one."""
        raise NotImplementedError

    def next(self) -> list[Buffer]:
        """The next batch, or item: where it has another shape, the net is to follow first."""
        if not self.reshapes:
            return super().next()
        if self._waiting is None:
            self._waiting = []
            for values in self.one(self._place + self.rank):
                buffer = allocate(values.shape)
                buffer.array[...] = values
                self._waiting.append(buffer)
            self._place += self.ranks
            shapes = [buffer.array.shape for buffer in self._waiting]
            if shapes != self.shapes:
                self.shapes = shapes
                raise Reshaped
        made, self._waiting = self._waiting, None
        return made

    @property
    def position(self) -> int:
        """How many records the net has taken since the stream began."""
        return self._place if self.reshapes else self._pipeline.position

    @position.setter
    def position(self, position: int) -> None:
        if self.reshapes:
            self._place, self._waiting = position, None
        else:
            self._pipeline.position = position

    def split(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        if not self.reshapes:
            self._pipeline.split(rank, ranks)

    def close(self) -> None:
        if not self.reshapes:
            super().close()
