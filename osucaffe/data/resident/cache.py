"""Batches of records that stay in the backend's memory: there a step of the net makes them, of
records whose numbers it is told for many batches ahead.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import numpy as np

from ...backends.backend import Backend
from ...backends.rows_ahead import RowsAhead
from ...backends.tensor import Tensor
from ..ahead.pipeline import Buffer, Fill, Pipeline
from ..streams.hdf5 import Hdf5Source
from ..streams.images import ImageStream
from .sharded import Neighbours, ShardedSlots
from .slots import Form, RecordSlots

_log = logging.getLogger("osucaffe")

_AHEAD = 256
_RECORDS_AHEAD = 1 << 14
"""The most batches, and records of them, that are announced to the device ahead of time."""
_PIECE = 4 << 20
_RECORDS_OF_A_PIECE = 1 << 12
"""Bytes and records that are read at a time, if that is more than a batch."""
_PATIENCE = 8
"""How often that is read of which nothing lacked, before only what lacks is: to read elsewhere than
after the last batch costs those that were made ahead."""


class CachedBatches:
    """The batches of a stream, as from a Pipeline, but made by the device.

    While records are missing, a Pipeline reads those that are needed next: several batches at a
    time in a single process, else this rank's. Once all are cached, nothing is read any more.

    forms: the shape and type of each part of a record that stays on the device: what `fill_whole`
    of the source writes. width: of what `rows` tells of each record: 1, or 5 as for the primitive
    `cached_batch`; then `fill_whole` writes labels, too, and which records it could not write.
    fed: the same of a batch as `fill` writes it, for records that cannot stay: the parts, and with
    a width of 5 the table of `transform`, and the labels if they are wanted. pipeline: makes a
    Pipeline of a function, and shapes and dtypes of what it writes. title: what the log calls the
    layer.

    neighbours: among whose devices the records are to be divided, if they are.

    `parts`, `slots.table` and `ahead` are for the net's calls, which find their memory when
    `prepare` has been called. A row of `ahead` tells of a batch what `rows` does of its records.
    """

    def __init__(
        self,
        backend: Backend,
        source: ImageStream | Hdf5Source,
        forms: Sequence[Form],
        *,
        batch: int,
        width: int,
        fed: Sequence[Form],
        pipeline: Callable[..., Pipeline],
        title: str,
        neighbours: Neighbours | None = None,
    ) -> None:
        self._backend, self._source, self._batch = backend, source, batch
        kind = functools.partial(ShardedSlots, neighbours) if neighbours else RecordSlots
        self.slots: RecordSlots = kind(
            backend, forms, len(source), batch, labelled=width > 1, title=title
        )
        self._uploads = self.slots.uploads
        self._forms, self._fed = list(forms), list(fed)
        self._make_pipeline, self._title = pipeline, title
        self._in_vain = 0
        ahead = max(1, min(_AHEAD, _RECORDS_AHEAD // batch))
        self.ahead = RowsAhead(self._uploads, (batch, width), "int32", ahead, "batches")
        self._stays = True
        self._pipeline: Pipeline | None = None
        self._turn, self._behind = 0, None
        self._offset, self._stride, self._position = 0, batch, 0

    @property
    def parts(self) -> list[Tensor]:
        """The tensors that hold the records."""
        return self.slots.parts

    @property
    def written(self) -> list[Tensor]:
        """All that `prepare` writes."""
        return [*self.slots.tensors, self.ahead.table, self.ahead.cursor]

    # -- as Pipeline ------------------------------------------------------------------------------

    def split(self, rank: int, ranks: int) -> None:
        """Prepare only every `ranks`-th batch, from batch `rank` on."""
        self._offset, self._stride = rank * self._batch, ranks * self._batch
        self.ahead.wait()
        self.close()
        self._pipeline, self.ahead.left = None, 0
        self.slots.split(ranks)

    @property
    def position(self) -> int:
        """The number of records used so far. Set it to continue from another position."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        self._position, self.ahead.left = position, 0

    def next(self) -> list[Buffer]:
        """Prepare the next batch: there is nothing to return."""
        self.prepare()
        return []

    def prepare(self) -> None:
        """Ensure that the next row of `ahead` makes the next batch."""
        if not self.ahead.left:
            self._tell()
        self.ahead.left -= 1
        self._position += self._stride

    def close(self) -> None:
        """Stop the readers. The next batch starts them again, if it needs them."""
        if self._pipeline:
            self._pipeline.close()

    # -- batches of records that stay --------------------------------------------------------------

    def _tell(self) -> None:
        """Write rows ahead: those of the next batches whose records are cached, at least one."""
        if self.ahead.cursor.array is None:
            self._begin()
        if self._stays:
            at_once, lacking = self._at_once, self.slots.lacking()
            if not lacking and self._pipeline:
                self._stop_reading()
            reads = lacking > 0 and self._in_vain < _PATIENCE
            rows = self._rows(at_once if reads else self.ahead.most)
            there = self.slots.has[rows[..., 0]].all(axis=1)
            if (reads or not there[0]) and self._fetch(rows[:at_once, :, 0].ravel()):
                there[:at_once] = True
            count = len(there) if there.all() else int(np.argmin(there))
            if count:
                if self.slots.labels is not None:
                    rows[:count, :, -1] = self.slots.labels[rows[:count, :, 0]]
                self.ahead.write(rows[:count])
                return
        self._pass()

    @property
    def _at_once(self) -> int:
        """The number of batches that are read at a time."""
        if self._stride > self._batch:
            return 1
        nbytes = sum(map(self._backend.nbytes, self.parts)) // self.parts[0].shape[0]
        # Only a part of a small set: reading ahead beyond its end is of no use.
        most = min(_RECORDS_OF_A_PIECE, _PIECE // nbytes, self.slots.count // 8) // self._batch
        return max(1, min(self.ahead.most, most))

    def _rows(self, count: int) -> np.ndarray:
        """The source's rows of the next batches."""
        first = self._position + self._offset + self._stride * np.arange(count)
        return self._source.rows(first[:, None] + np.arange(self._batch))

    def _fetch(self, numbers: np.ndarray) -> bool:
        """Read the next records, which have these numbers, and send the missing ones. False if they
        cannot be cached."""
        arrays = self._read(self._source.fill_whole, self._batch_forms(len(numbers)), len(numbers))
        parts, rest = arrays[: len(self.parts)], arrays[len(self.parts) :]
        if rest and rest[1].any():
            self._stop_reading()
            self._stays, self._behind = False, self._uploads.mark()
            self.slots.refuse()
            _log.info(
                "%s: its records are read again in each epoch: the one with number %d has another "
                "shape than the first (--cache)",
                self._title,
                numbers[np.argmax(rest[1])],
            )
            return False
        new, at = np.unique(np.where(self.slots.has[numbers], -1, numbers), return_index=True)
        new, at = new[new >= 0], at[new >= 0]
        self.slots.put(new, at, parts, rest[0] if rest else None)
        self._in_vain = 0 if len(new) else self._in_vain + 1
        return True

    def _batch_forms(self, count: int) -> list[Form]:
        """The shapes and types that `fill_whole` writes for `count` records."""
        rest = [] if self.slots.labels is None else [((), "int32"), ((), "uint8")]
        return [((count, *shape), dtype) for shape, dtype in (*self._forms, *rest)]

    def _read(self, fill: Fill, forms: Sequence[Form], records: int) -> list[np.ndarray]:
        """The next records from a Pipeline."""
        if self._pipeline is None:
            shapes, dtypes = zip(*forms, strict=True)
            self._pipeline = self._make_pipeline(fill, shapes, dtypes=dtypes)
            self._pipeline.split(self._offset // records, self._stride // self._batch)
        if self._pipeline.position != self._position:
            self._pipeline.position = self._position
        self.ahead.wait()  # the last ones have left the memory that becomes the next ones'
        buffers = self._pipeline.next()
        for buffer in buffers:
            self._uploads.pin(buffer.flat)
        return [buffer.array for buffer in buffers]

    def _stop_reading(self) -> None:
        self.slots.wait()
        self.close()
        self._pipeline = None

    def _begin(self) -> None:
        """Allocate the memory, after the nets have theirs."""
        self.ahead.place(self._backend)
        self._stays = self.slots.take()
        self._backend.synchronize()  # the memory may have been that of steps that still run

    # -- batches that come and go ------------------------------------------------------------------

    def _pass(self) -> None:
        """Send the next batch itself, to a buffer that is not in use."""
        arrays = self._read(self._source.fill, self._fed, self._batch)
        self._turn = 1 - self._turn
        first, after, self._behind = self._turn * self._batch, self._behind, self._uploads.mark()
        for array, part in zip(arrays, self.slots.batches, strict=False):
            self._uploads.send(array, part, first, after=after)
        rows = np.zeros((1, *self.ahead.table.shape[1:]), np.int32)
        rows[0, :, 0] = self.slots.rows_of(first + np.arange(self._batch))
        rest = arrays[len(self.parts) :]
        if rest:
            rows[0, :, 1:4] = rest[0]
        if len(rest) > 1:
            rows[0, :, 4] = rest[1]
        self.ahead.write(rows)
