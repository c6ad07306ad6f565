"""Owns batches of records that stay in the backend's memory: there a step of the net makes them, of
records whose numbers it is told for many batches ahead.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ..backends.backend import Backend
from ..backends.rows_ahead import RowsAhead
from ..backends.tensor import Shape, Tensor
from ..errors import UserError
from .filling import Filler, Unlike
from .pipeline import Buffer, Pipeline

_log = logging.getLogger("osucaffe")

SHARE = 0.5
"""Of the memory that is free before a net is built: what its records may take by default."""
_SHARE_LEFT = 0.9
"""Of what is free when it has been built."""
_AHEAD = 256
_RECORDS_AHEAD = 1 << 14
"""How many batches, and of how many records, the device is told ahead at most."""
_PLANS = 8


class Cacheable(Protocol):
    """What gives records, and tells in which order they come: see DatumSource."""

    def __len__(self) -> int: ...
    def rows(self, positions: np.ndarray) -> np.ndarray: ...
    def read(self, start: int, stop: int, arrays: Sequence[np.ndarray]) -> None: ...


class CachedBatches:
    """The batches of a stream, as Pipeline gives them, but made by the device.

    forms: the shape and type of each part of a record that stays on the device. width: of what
    `rows` tells of each record: 1, or 5 as for the primitive `cached_batch`; then `read` writes
    labels, too, behind the parts. pipeline: makes what reads the batches where the records do not
    stay: its arrays are a batch of each part, then, with a width of 5, the table of `transform` and
    the labels, if they are wanted. title: what the log calls the layer.

    `parts` and `ahead` are for the net's calls, which find their memory when `prepare` has been
    called. A row of `ahead` tells of a batch what `rows` does of its records.
    """

    def __init__(
        self,
        backend: Backend,
        source: Cacheable,
        forms: Sequence[tuple[Shape, str]],
        *,
        batch: int,
        width: int,
        threads: int,
        pipeline: Callable[[], Pipeline],
        title: str,
    ) -> None:
        self._backend, self._source, self._batch = backend, source, batch
        self._uploads = backend.uploads()
        self._threads, self._make_pipeline, self._title = threads, pipeline, title
        count = len(source)
        self._labels = np.zeros(count, np.int32) if width > 1 else None
        places = max(count, 2 * batch)  # if they cannot stay: two batches
        self.parts = [Tensor((places, *shape), dtype, "cache") for shape, dtype in forms]
        ahead = max(1, min(_AHEAD, _RECORDS_AHEAD // batch))
        self.ahead = RowsAhead(self._uploads, (batch, width), "int32", ahead, "batches")
        self._filler: Filler | None = None
        self._pipeline: Pipeline | None = None
        self._plans: deque[tuple[np.ndarray, np.ndarray]] = deque()
        """What comes next: the rows of batches, and which piece each batch needs."""
        self._offset, self._stride = 0, batch
        self._position = self._planned = 0

    # -- as Pipeline ------------------------------------------------------------------------------

    def split(self, rank: int, ranks: int) -> None:
        """Bring only every `ranks`-th batch, from batch `rank` on."""
        self._offset, self._stride = rank * self._batch, ranks * self._batch
        if self._pipeline:
            self._pipeline.split(rank, ranks)
        self._forget()

    @property
    def position(self) -> int:
        """How many records were given out. Set it, and those from there on come next."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        self._position = position
        if self._pipeline:
            self._pipeline.position = position
        self._forget()

    def next(self) -> list[Buffer]:
        """Prepare the next batch: there is nothing to give out."""
        self.prepare()
        return []

    def prepare(self) -> None:
        """See to it that the next row of `ahead` makes the next batch."""
        if not self.ahead.left:
            self._tell()
        self.ahead.left -= 1
        self._position += self._stride

    def close(self) -> None:
        """Stop the reading threads. The next batch starts them again, if it needs them."""
        for each in (self._filler, self._pipeline):
            if each:
                each.close()

    # -- batches of records that stay --------------------------------------------------------------

    def _forget(self) -> None:
        self._plans.clear()
        self.ahead.left, self._planned = 0, self._position

    def _tell(self) -> None:
        """Write as many rows ahead as their records are there, one at least."""
        if self.ahead.cursor.array is None:
            self._begin()
        if self._filler is None:
            self._pass()
            return
        if not self._plans:
            self._plan(self._filler)
        rows, due = self._plans[0]
        try:
            self._filler.bring(int(due[0]))
        except Unlike as reason:
            self._filler.close()
            self._filler = None
            _log.info(
                "%s: its records are read anew in each epoch: %s, unlike the first (--cache)",
                self._title,
                reason,
            )
            self._pass()
            return
        there = self._filler.has(due)
        count = len(due) if there.all() else int(np.argmin(there))
        if count < len(due):
            self._plans[0] = rows[count:], due[count:]
        else:
            self._plans.popleft()
        if self._labels is not None:
            rows[:count, :, -1] = self._labels[rows[:count, :, 0]]
        self.ahead.write(rows[:count])
        while self._filler.is_idle and len(self._plans) < _PLANS:
            self._plan(self._filler)

    def _plan(self, filler: Filler) -> None:
        """Find out which records the next batches are made of, and ask for those that lack."""
        batches = self._planned + self._stride * np.arange(self.ahead.most)
        rows = self._source.rows((self._offset + batches)[:, None] + np.arange(self._batch))
        self._plans.append((rows, filler.ask(rows[..., 0])))
        self._planned += self._stride * len(rows)

    # -- where they lie ---------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take the memory, now that the nets have theirs: for all records if there is room."""
        backend = self._backend
        self.ahead.place(backend)
        size, room = sum(map(backend.nbytes, self.parts)), self._uploads.room()
        if size <= room * _SHARE_LEFT and self._place():
            targets: list[Tensor | np.ndarray] = [*self.parts]
            if self._labels is not None:
                targets.append(self._labels)
            count = len(self._source)
            self._filler = Filler(self._source.read, count, targets, self._uploads, self._threads)
            self._planned = self._position
            what = f"{_amount(size)}, of {_amount(room)} that are free (--cache)"
            _log.info("%s: its %d records will stay in memory: %s", self._title, count, what)
        else:
            for part in self.parts:  # two batches: one is sent while the other is used
                part.shape = (2 * self._batch, *part.shape[1:])
            if not self._place():
                raise UserError(f"{self._title}: there is no memory for two batches")
            _log.info("%s: %s", self._title, _refusal(size, room))
        backend.synchronize()  # the memory may have been that of steps that still run

    def _place(self) -> bool:
        """Take memory for the parts, if it is there."""
        backend = self._backend
        try:
            memory = [backend.allocate(backend.nbytes(part)) for part in self.parts]
        except (UserError, MemoryError):
            return False
        for part, each in zip(self.parts, memory, strict=True):
            backend.place(part, each, 0)
        return True

    # -- batches that come and go ------------------------------------------------------------------

    def _pass(self) -> None:
        """Send the next batch itself, to where none is that is still used."""
        if self._pipeline is None:
            self._pipeline = self._make_pipeline()
            self._pipeline.split(self._offset // self._batch, self._stride // self._batch)
            self._pipeline.position = self._position
            self._turn = 0
            self._mark = self._uploads.mark()
        self.ahead.wait()  # the last batch has left the memory that becomes the next one's
        arrays = [buffer.array for buffer in self._pipeline.next()]
        self._turn = 1 - self._turn
        first, behind, self._mark = self._turn * self._batch, self._mark, self._uploads.mark()
        for array, part in zip(arrays, self.parts, strict=False):
            self._uploads.send(array, part, first, behind=behind)
        rows = np.zeros((1, *self.ahead.table.shape[1:]), np.int32)
        rows[0, :, 0] = first + np.arange(self._batch)
        told = arrays[len(self.parts) :]
        if told:
            rows[0, :, 1:4] = told[0]
        if len(told) > 1:
            rows[0, :, 4] = told[1]
        self.ahead.write(rows)


def may_stay(size: int, room: int, title: str) -> bool:
    """Whether records of so many bytes may take so much of the room, before nets have theirs."""
    if size <= room * SHARE:
        return True
    _log.info("%s: %s", title, _refusal(size, room))
    return False


def _refusal(size: int, room: int) -> str:
    return (
        "its records are read anew in each epoch: "
        f"to stay they take {_amount(size)}, and {_amount(room)} are free (--cache)"
    )


def _amount(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"
