"""The slots of records that are cached in the backend's memory, and which are filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backends.backend import Backend
from ...backends.tensor import Run, Shape, Tensor
from ...errors import UserError
from ..streams.order import consecutive
from .memory_limit import log_refusal, log_stay

Form = tuple[Shape, str]
"""The shape and the type of an array."""

SHARE_LEFT = 0.9
"""The largest share of memory, free after nets are built, that records may take."""


class RecordSlots:
    """Slots for `count` records, or for two batches of records that cannot be cached.

    forms: the shape and type of each part of a record. `parts`: the tensors of the records by
    number, with memory after `take`. `batches`: buffers for `batch` records that are not cached.
    has: which records are cached. labels: theirs, if they have
    any. title: the layer's name in the log.
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
        self._sent: Run | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that the host writes."""
        return self.parts

    @property
    def batches(self) -> list[Tensor]:
        return self.parts

    def split(self, ranks: int) -> None:
        """`ranks` ranks prepare their parts of the batches: all call it together."""

    def take(self) -> bool:
        """Allocate the memory, after the nets have theirs; False if it only fits two batches.
        UserError if it does not fit those."""
        size, free = sum(map(self._backend.nbytes, self.parts)), self.uploads.free_bytes()
        if size <= free * SHARE_LEFT and self._allocate(self.parts):
            log_stay(self._title, self.count, size, free)
            return True
        for part in self.parts:
            part.shape = (2 * self._batch, *part.shape[1:])
        self._allocate_batches(self.parts)
        log_refusal(self._title, size, free)
        return False

    def refuse(self) -> None:
        """Stop caching: take batches only."""

    def put(
        self, numbers: np.ndarray, at: np.ndarray, parts: Sequence[Any], labels: np.ndarray | None
    ) -> None:
        """Send the records with these numbers, in rising order, from the rows `at` of arrays."""
        for run in consecutive(numbers, at):
            slots = at[run]
            for array, part in zip(parts, self.parts, strict=True):
                rows = array[slots[0] : slots[-1] + 1]
                self._sent = self.uploads.send(rows, part, int(numbers[run.start]))
        if self.labels is not None and labels is not None:
            self.labels[numbers] = labels[at]
        self.has[numbers] = True

    def lacking(self) -> int:
        """How many records are missing."""
        return self.count - int(np.count_nonzero(self.has))

    def wait(self) -> None:
        """Wait until all that was sent has left the host's memory."""
        if self._sent:
            self._sent()

    def rows_of(self, slots: np.ndarray) -> np.ndarray:
        """The numbers, for `cached_batch`, of records sent to these slots of `batches`."""
        return slots

    def _allocate(self, tensors: Sequence[Tensor]) -> bool:
        """Give tensors memory, if available."""
        backend = self._backend
        try:
            memory = [backend.allocate(backend.nbytes(tensor)) for tensor in tensors]
        except (UserError, MemoryError):
            return False
        for tensor, target in zip(tensors, memory, strict=True):
            backend.place(tensor, target, 0)
        return True

    def _allocate_batches(self, tensors: Sequence[Tensor]) -> None:
        if not self._allocate(tensors):
            raise UserError(f"{self._title}: not enough memory for two batches")
