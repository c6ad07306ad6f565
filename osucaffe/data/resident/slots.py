"""Owns where records lie that stay in the backend's memory, and which of them are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backends.backend import Backend
from ...backends.tensor import Shape, Step, Tensor
from ...errors import UserError
from ..streams.order import consecutive
from .memory_limit import log_refusal, log_stay

Form = tuple[Shape, str]
"""The shape and the type of an array."""

SHARE_LEFT = 0.9
"""Of the memory that is free when the nets have theirs: what records may take at most."""


class RecordSlots:
    """Slots for `count` records, or for two batches of records that cannot stay.

    forms: the shape and type of each part of a record. `parts`: where the records of these numbers
    lie, with memory once `take` was called. `batches`: where `batch` records can be sent that do
    not stay, behind the same number. has: which records are there. labels: theirs, if they have
    any. title: what the log calls the layer.
    """

    table: Tensor | None = None
    """For `cached_batch`: the addresses of the memories among which records are divided."""

    def __init__(
        self,
        backend: Backend,
        forms: Sequence[Form],
        count: int,
        batch: int,
        *,
        labelled: bool,
        title: str,
    ) -> None:
        self._backend, self._title = backend, title
        self.uploads = backend.uploads()
        self.count, self._batch = count, batch
        rows = max(count, 2 * batch)  # if they cannot stay: two batches
        self.parts = [Tensor((rows, *shape), dtype, "cache") for shape, dtype in forms]
        self.has = np.zeros(count, bool)
        self.labels = np.zeros(count, np.int32) if labelled else None
        self._sent: Step | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All that the host writes here."""
        return self.parts

    @property
    def batches(self) -> list[Tensor]:
        return self.parts

    def split(self, ranks: int) -> None:
        """So many ranks bring their parts of the batches: all call it together."""

    def take(self) -> bool:
        """Take the memory, now that the nets have theirs; False if it has only room for two
        batches. UserError if it has none for those."""
        size, room = sum(map(self._backend.nbytes, self.parts)), self.uploads.room()
        if size <= room * SHARE_LEFT and self._allocate(self.parts):
            log_stay(self._title, self.count, size, room)
            return True
        for part in self.parts:
            part.shape = (2 * self._batch, *part.shape[1:])
        self._allocate_batches(self.parts)
        log_refusal(self._title, size, room)
        return False

    def refuse(self) -> None:
        """Take no records any more, but batches."""

    def put(
        self, numbers: np.ndarray, at: np.ndarray, parts: Sequence[Any], labels: np.ndarray | None
    ) -> None:
        """Send the records with these numbers, in rising order, which lie `at` places of arrays."""
        for run in consecutive(numbers, at):
            places = at[run]
            for array, part in zip(parts, self.parts, strict=True):
                rows = array[places[0] : places[-1] + 1]
                self._sent = self.uploads.send(rows, part, int(numbers[run.start]))
        if self.labels is not None and labels is not None:
            self.labels[numbers] = labels[at]
        self.has[numbers] = True

    def lacking(self) -> int:
        """How many records are not there."""
        return self.count - int(np.count_nonzero(self.has))

    def wait(self) -> None:
        """Wait until all that was sent has left the host's memory."""
        if self._sent:
            self._sent()

    def rows_of(self, places: np.ndarray) -> np.ndarray:
        """What a row of `cached_batch` calls a record that was sent to this place of `batches`."""
        return places

    def _allocate(self, tensors: Sequence[Tensor]) -> bool:
        """Give tensors memory, if it is there."""
        backend = self._backend
        try:
            memory = [backend.allocate(backend.nbytes(tensor)) for tensor in tensors]
        except (UserError, MemoryError):
            return False
        for tensor, each in zip(tensors, memory, strict=True):
            backend.place(tensor, each, 0)
        return True

    def _allocate_batches(self, tensors: Sequence[Tensor]) -> None:
        if not self._allocate(tensors):
            raise UserError(f"{self._title}: there is no memory for two batches")
