"""The stream of records of a Data layer: from a database into a batch."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ...errors import UserError
from ..databases.datum import parse_datum
from ..databases.raw_records import SMALL, BulkReader, PlainForm
from ..databases.record_database import Database
from ..pictures.jpeg import plain_shape
from ..pictures.transform import Transform
from .images import ImageStream, Labelled, Rows, Take
from .order import consecutive

_CACHED = 2 << 20
"""Bytes that are read at a time: they are processed while still in the core's cache."""


class _Memory(threading.local):
    """Thread-local memory; a copy starts without any."""

    image: np.ndarray | None = None

    def __reduce__(self) -> Any:
        return _Memory, ()


class DatumSource(ImageStream):
    """The records of a database, in key order or by blocks, transformed.

    Raw records of the same form enter a batch in bulk, others one by one. The rest is as in
    ImageStream.
    """

    def __init__(self, database: Database, transform: Transform, **options: Any) -> None:
        self._database, self._local = database, _Memory()
        none = f"{database.path} has no record that can be used"
        super().__init__(len(database), none, transform, **options)
        [(_, value)] = database.read(self._first, self._first + 1)
        datum = parse_datum(value)
        self.encoded = datum.encoded
        self._at_once = -(-_CACHED // max(len(value), 1))
        self._form = PlainForm.of(value, datum)
        self._bulk = None
        if len(value) > SMALL:
            if self.raw and self._form and (ranges := database.ranges(0, 1)):
                self._bulk = BulkReader(database, self._form)
                self.file = ranges.file
            self._form = None

    def check(self) -> None:
        self._database.check()

    def load(self, record: int) -> Labelled:
        [(key, value)] = self._database.read(record, record + 1)
        return self._decode(key, value)

    def name(self, record: int) -> str:
        return self._database.name(self._database.key(record))

    def file_name(self, record: int) -> str:
        key = bytes(self._database.key(record)).decode(errors="replace")
        return key.partition("_")[2] or key

    def fill_rows(self, records: np.ndarray, rows: Rows) -> None:
        for run in consecutive(records):
            start, stop = int(records[run.start]), int(records[run.stop - 1]) + 1
            part = rows.part(run)
            if self._fill_at_once(start, stop, part):
                continue
            for first in range(0, stop - start, self._at_once):
                some = part.part(slice(first, first + self._at_once))
                self._fill_one_by_one(start + first, some)

    def _fill_at_once(self, start: int, stop: int, rows: Rows) -> bool:
        """Fill in records that are cached, or raw ones of the first one's form. False if there are
        others, or one has an invalid label."""
        cache, labels = self.decoded, None
        if cache and cache.has[start:stop].all():
            labels = cache.labels[start:stop]
            self._enter_all(cache.images[start:stop], rows)
        elif self._bulk:
            labels = self._bulk.read(start, stop, rows.images, self.copier)
            if labels is None or self.labels.wrong(labels) is not None:
                return False
            self._choose_all(rows)
        elif self._form:
            values = self._database.rows(start, stop)
            plain = None if values is None else self._form.small(values)
            if plain is None or self.labels.wrong(plain[1]) is not None:
                return False
            images, labels = plain
            self._enter_all(images, rows)
        else:
            return False
        if rows.labels is not None:
            rows.labels[:] = labels
        return True

    def _enter_all(self, images: np.ndarray, rows: Rows) -> None:
        """Write images of the first one's shape to a batch."""
        transform = self._transform
        if self.raw:
            np.copyto(rows.images, images)
            self._choose_all(rows)
        elif transform.random:
            for image, out, draw in zip(images, rows.images, rows.draws.tolist(), strict=True):
                transform.apply(image, out, draw)
        else:
            transform.apply(images, rows.images)

    def _choose_all(self, rows: Rows) -> None:
        """Write the crops of images of the first one's shape to the table."""
        assert rows.table is not None, "raw records have one"
        self._transform.choose_all(self.record_shape, rows.draws, rows.table)

    def _fill_one_by_one(self, start: int, rows: Rows) -> None:
        records = self._database.read(start, start + len(rows.images))
        for at, ((key, value), draw) in enumerate(zip(records, rows.draws.tolist(), strict=True)):
            if rows.take and self._is_taken(rows.take, key, value, at, draw, rows):
                continue
            out = self._thread_memory() if self.copier else rows.images[at]
            try:
                item = self._decode(key, value, self._memory(out))
                self.check_item(self._database.name(key), item.label, item.image.shape)
            except UserError:
                item = self.usable(start + at, draw)
            else:
                if self.decoded:
                    self.decoded.put(start + at, *item)
            self.enter(item, draw, rows, at, out)
            if self.copier:
                self.copier.put(out, at, rows.images)

    def _is_taken(
        self, take: Take, key: memoryview, value: memoryview, at: int, draw: int, rows: Rows
    ) -> bool:
        """Whether a record is taken as a JPEG; then its other data is written. Bad ones are not, so
        that the usual path reports them."""
        try:
            datum = parse_datum(value)
            shape = plain_shape(datum.data, self._transform.colour) if datum.encoded else None
            if shape is None:
                return False
            self.check_item(self._database.name(key), datum.label, shape)
        except (ValueError, UserError):
            return False
        part, choice = self._transform.part(shape, self.record_shape, draw)
        if not take(datum.data, part, at, rows.images):
            return False
        assert rows.table is not None, "interleaved records are raw"
        rows.table[at] = choice
        if rows.labels is not None:
            rows.labels[at] = datum.label
        return True

    def _memory(self, out: np.ndarray) -> np.ndarray | None:
        """Where to decode an image: into the batch, if it enters it unchanged."""
        if not self.encoded:
            return None
        return out.transpose(1, 2, 0) if self.raw else self._thread_memory()

    def _thread_memory(self) -> np.ndarray:
        """The calling thread's buffer for an image: allocating one for each takes time."""
        if self._local.image is None:
            channels, *extents = self.record_shape
            shape = (*extents, channels) if self.encoded else self.record_shape
            self._local.image = np.empty(shape, np.uint8)
        return self._local.image

    def _decode(
        self, key: memoryview, value: memoryview, memory: np.ndarray | None = None
    ) -> Labelled:
        datum, image = self._database.decode(key, value, self._transform.colour, memory)
        if self.raw and image.dtype != np.uint8:
            raise UserError(
                f"{self._database.name(key)} holds float_data, but the first record bytes: "
                "give all records one kind"
            )
        return Labelled(image, datum.label)
