"""Bulk reads of raw records that differ only in their pixels and labels.

Such records have the same head, pixels at the same offset, and after these the label and the same
remaining bytes. Others are left to `parse_datum`.
"""

from __future__ import annotations

import os
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from ...backends.records import RecordCopier
from ...backends.tensor import Shape
from ...errors import UserError
from .datum import LABEL_TAG, Datum
from .lmdb_tree import COPY_AGAIN
from .record_database import Database, ValueRanges

SMALL = 16384
"""Bytes of a record from which on it gets a separate iovec entry in a bulk read."""

_TAIL = 16
_GAP = 1 << 16
_AT_ONCE = 256  # four places each: as many as the system takes in one call


class PlainForm:
    """What records have in common with the first one.

    shape: (channels, height, width). head: the bytes before the pixels; rest: those after the
    label.
    """

    def __init__(self, first: bytes, datum: Datum) -> None:
        self.shape: Shape = datum.shape
        self.size = len(datum.data)
        self.head = first[: datum.offset]
        tail = first[datum.offset + self.size :]
        self.labelled = tail[:1] == bytes([LABEL_TAG])
        self.rest = tail[_label_end(tail) :] if self.labelled else tail

    @classmethod
    def of(cls, value: memoryview, datum: Datum) -> PlainForm | None:
        """The form of a raw record; None if it is encoded, of floats, or has further fields."""
        if datum.encoded or datum.values is not None or not datum.offset:
            return None
        form = cls(bytes(value), datum)
        return form if len(form.rest) <= 2 else None  # at most the field `encoded`

    def small(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The pixels (N, channels, height, width) and labels of records, as bytes (N, length).

        None if one has another form.
        """
        nbytes = rows.shape[1]
        start, stop = len(self.head), len(self.head) + self.size
        tails = rows[:, stop : stop + _TAIL]
        labels = self.labels(rows[:, :start], tails, np.full(len(rows), nbytes - stop))
        if labels is None:
            return None
        return rows[:, start:stop].reshape(-1, *self.shape), labels

    def labels(
        self, heads: np.ndarray, tails: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray | None:
        """The labels of records with these heads, and tails of these lengths.

        None if one has another form, or a label of more than 21 bits.
        """
        if heads.shape[1] != len(self.head) or (heads != np.frombuffer(self.head, np.uint8)).any():
            return None
        padded = np.zeros((len(tails), _TAIL), np.int64)
        padded[:, : tails.shape[1]] = tails
        # A tail without the remaining bytes is the label: its tag, then 7 bits per byte.
        sizes = lengths - len(self.rest) - self.labelled
        least, most = int(sizes.min()), int(sizes.max())
        if not (1 <= least <= most <= 3 if self.labelled else least == most == 0):
            return None
        if self.labelled and (padded[:, 0] != LABEL_TAG).any():
            return None
        label = np.zeros(len(tails), np.int64)
        for at in range(most):
            byte, there = padded[:, at + 1], sizes > at
            if (there & ((byte > 0x7F) != (sizes > at + 1))).any():
                return None
            label += np.where(there, (byte & 0x7F) << 7 * at, 0)
        ends = sizes + self.labelled
        rows = np.arange(len(tails))
        if any((padded[rows, ends + at] != byte).any() for at, byte in enumerate(self.rest)):
            return None
        return label


def _label_end(tail: bytes) -> int:
    """The end of the number after the label's tag."""
    return next((at + 1 for at in range(1, len(tail)) if tail[at] < 0x80), len(tail))


def _shorter(file: BinaryIO) -> UserError:
    return UserError(f"{file.name} has become shorter while it was read: {COPY_AGAIN}")


class BulkReader:
    """Copies the pixels of large plain records from a file straight into a batch.

    Hundreds of records are one system call, without the GIL: so a few threads reach
    memory speed. And a file that is truncated meanwhile is an error, not a crash.
    """

    def __init__(self, database: Database, form: PlainForm) -> None:
        self._database, self._form = database, form
        self._gap = np.empty(_GAP, np.uint8)
        self._labels: np.ndarray | None = None

    def read(
        self, start: int, stop: int, images: Any, copier: RecordCopier | None = None
    ) -> np.ndarray | None:
        """Write the pixels of the records start .. stop - 1 into images (uint8, row-major): in
        host memory, or that of the copier's batches.

        Returns their labels; or None if one is not plain: then images holds garbage.
        """
        if copier is None:
            return self._read(start, stop, images)
        labels = self._known_labels(start, stop)
        if labels is None:
            return None
        pixels = self._ranges(start, stop).begins + len(self._form.head)
        if copier.copy(pixels, images):
            self._ranges(start, stop)  # else the end of what was copied may be anything
            return labels
        memory = np.empty(images.shape, np.uint8)
        labels = self._read(start, stop, memory)
        copier.put(memory, 0, images)
        return labels

    def _ranges(self, start: int, stop: int) -> ValueRanges:
        """The locations of records, checked against the file's size."""
        ranges = self._database.ranges(start, stop)
        assert ranges is not None, "who makes this has asked"
        if os.fstat(ranges.file.fileno()).st_size < (ranges.begins + ranges.sizes).max():
            raise _shorter(ranges.file)
        return ranges

    def _known_labels(self, start: int, stop: int) -> np.ndarray | None:
        """The labels of records, which are read once; None if a record is not plain."""
        if self._labels is None:
            self._labels = np.full(len(self._database), -1, np.int32)
        known = self._labels[start:stop]
        if (known >= 0).all():
            return known
        file, begins, sizes = self._ranges(start, stop)
        before = len(self._form.head) + self._form.size
        lengths = sizes - before
        if (lengths < 0).any() or (lengths > _TAIL).any():
            return None
        heads = np.empty((stop - start, len(self._form.head)), np.uint8)
        tails = np.zeros((stop - start, _TAIL), np.uint8)
        for head, tail, begin, length in zip(
            heads, tails, begins.tolist(), lengths.tolist(), strict=True
        ):
            count = os.preadv(file.fileno(), [head.data], begin)
            count += os.preadv(file.fileno(), [tail[:length].data], begin + before)
            if count < len(head) + length:
                raise _shorter(file)
        labels = self._form.labels(heads, tails, lengths)
        if labels is not None:
            known[:] = labels
        return labels

    def _read(self, start: int, stop: int, images: np.ndarray) -> np.ndarray | None:
        form, count = self._form, stop - start
        file, begins, sizes = self._ranges(start, stop)
        lengths = sizes - (len(form.head) + form.size)
        if (lengths < 0).any() or (lengths > _TAIL).any():
            return None
        heads = np.empty((count, len(form.head)), np.uint8)
        tails = np.zeros((count, _TAIL), np.uint8)
        pixels = images.reshape(count, form.size)
        gaps = np.append(begins[1:] - (begins + sizes)[:-1], -1)
        at = 0
        # Records are contiguous, apart from an occasional page of keys between them.
        ends = np.flatnonzero((gaps < 0) | (gaps > _GAP)) + 1
        for end in ends.tolist():
            while at < end:
                last = min(end, at + _AT_ONCE)
                skipped = gaps[at:last].tolist()
                skipped[-1] = 0
                parts = chain.from_iterable(
                    zip(
                        heads[at:last],
                        pixels[at:last],
                        [tail[:n] for tail, n in zip(tails[at:], lengths[at:last], strict=False)],
                        [self._gap[:n] for n in skipped],
                        strict=True,
                    )
                )
                nbytes = os.preadv(file.fileno(), list(parts), int(begins[at]))
                # A signal may cut a call short: the next one continues after the last full record.
                done = int(np.searchsorted((begins + sizes)[at:last], begins[at] + nbytes, "right"))
                if not done:
                    raise _shorter(file)
                at += done
        return form.labels(heads, tails, lengths)
