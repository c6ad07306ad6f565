"""Owns the stream of records of a Data layer: which comes when, and how it enters a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from ...backends.records import Part, RecordCopier
from ...backends.tensor import Shape
from ...errors import UserError
from ...labels import Labels
from ..ahead.decoded_cache import Kept
from ..ahead.parallel_map import BadRecords
from ..databases.datum import Datum, parse_datum
from ..databases.raw_records import SMALL, BulkReader, PlainForm
from ..databases.record_database import Database
from ..databases.records import read_record, record_name
from ..pictures.jpeg import plain_shape
from ..pictures.transform import Transform, check_size, record_draws
from .order import first_record, records_at, runs

Records = list[tuple[memoryview, memoryview]]
Take = Callable[[memoryview, Part, int, np.ndarray], bool]
"""Whether a plain JPEG, of which a part belongs to a place of these images, is left to the caller
to decode."""

_CACHED = 2 << 20
"""Bytes that are read at once: the core's cache still holds them when they are looked at."""


class _Memory(threading.local):
    """Memory that each thread has for itself; in a copy, none."""

    image: np.ndarray | None = None

    def __reduce__(self) -> Any:
        return _Memory, ()


class DatumSource:
    """The records of a database, over and over in key order, transformed.

    The stream begins at a record below `rand_skip` that the seed picks. `shape` is the
    (channels, height, width) of every transformed record; it comes from the first one.
    block: as for order.runs. bad: what becomes of a record that cannot be used; where it is
    skipped, the next good record by key takes its place.
    raw: whether to give records as they are, for the primitive `transform`. Only bytes can be:
    afterwards `raw` tells whether they are, `raw_shape` their shape, and `interleaved` whether
    that has the channels last, as decoders write them.
    labels: those that a record may have; copier: what copies records from `file`, in which they
    lie as they are, to where the batches lie, in memory of its own; kept: where records stay (set
    these before the first batch).
    """

    def __init__(
        self,
        database: Database,
        transform: Transform,
        *,
        seed: int = 0,
        rand_skip: int = 0,
        block: int = 0,
        bad: BadRecords | None = None,
        raw: bool = False,
    ) -> None:
        self._database = database
        self._transform = transform
        self._seed = seed
        self._block = block
        self.bad = bad or BadRecords()
        self.labels = Labels()
        self.kept: Kept | None = None
        self.copier: RecordCopier | None = None
        self.file: BinaryIO | None = None
        self._start = first_record(seed, rand_skip)
        self._local = _Memory()
        first, _ = self.bad.usable(0, len(self), self._first, self._none)
        key, value, datum, image = first
        self.encoded = datum.encoded
        try:
            self.shape: Shape = transform.prepare(image.shape)
        except UserError as error:
            raise UserError(f"{error} (the first: {self._name(key)})") from error
        self.record_shape: Shape = image.shape
        self.raw = raw and image.dtype == np.uint8
        self._form = PlainForm.of(value, datum)
        is_large = len(value) > SMALL
        self._at_once = -(-_CACHED // max(len(value), 1))
        self.interleaved = self.raw and self.encoded
        channels, *extents = image.shape
        self.raw_shape = (*extents, channels) if self.interleaved else self.record_shape
        self._enter: Callable[..., None] = transform.keep if self.raw else transform.apply
        self._bulk = None
        if is_large:
            if self.raw and self._form and (places := database.places(0, 1)):
                self._bulk = BulkReader(database, self._form)
                self.file = places.file
            self._form = None

    def __len__(self) -> int:
        """How many records there are."""
        return len(self._database)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """What the primitive `cached_batch` is to make of the records at these positions of the
        stream: int32 (*of positions, 5), the labels left at 0."""
        epochs, records = records_at(
            self._start + positions, len(self), block=self._block, seed=self._seed
        )
        return self._transform.rows(self.record_shape, self._seed, epochs, records)

    def fill_whole(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the records of the stream from `position` on as they are, for `rows` to choose of.

        arrays: uint8 (N, *raw_shape); int32 (N,), the labels; and uint8 (N,), 1 for records that
        cannot be had so, as they have another shape than the first. UserError as of `fill`.
        """
        images, labels, other = arrays
        other[:] = 0
        data = [images, np.empty((len(images), 3), np.int32), other]
        self._fill(position, data, labels, drawn=False)

    def fill(self, position: int, arrays: Sequence[np.ndarray], take: Take | None = None) -> None:
        """Write the records of the stream from `position` on into a batch.

        arrays: data (N, channels, height, width), and labels (N,) if they are wanted. Raw data are
        two arrays: uint8 (N, *raw_shape), and int32 (N, 3), the table of `transform`.
        take: is asked for each plain JPEG of interleaved records.
        Raises UserError that names the key of a record that is damaged or of another size.
        """
        parts = 2 if self.raw else 1
        data, labels = list(arrays[:parts]), arrays[parts] if len(arrays) > parts else None
        self._fill(position, data, labels, drawn=self._transform.random, take=take)

    def _fill(
        self,
        position: int,
        data: list[np.ndarray],
        labels: np.ndarray | None,
        *,
        drawn: bool,
        take: Take | None = None,
    ) -> None:
        """`fill`; or where data has a third array, `fill_whole`. drawn: crops and mirrors are."""
        self._database.check()
        if self.interleaved:
            data[0] = data[0].transpose(0, 3, 1, 2)
        at = 0
        for epoch, start, stop in runs(
            self._start + position,
            len(data[0]),
            len(self._database),
            block=self._block,
            seed=self._seed,
        ):
            records = np.arange(start, stop)
            draws = np.zeros(len(records), np.uint64)
            if drawn:
                draws = record_draws(self._seed, np.full_like(records, epoch), records)
            piece = slice(at, at + len(records))
            out = [each[piece] for each in data]
            numbers = None if labels is None else labels[piece]
            if not self._fill_at_once(start, stop, draws, out, numbers):
                for first in range(0, len(records), self._at_once):
                    last = min(first + self._at_once, len(records))
                    some = slice(first, last)
                    self._fill_one_by_one(
                        self._database.read(start + first, start + last),
                        start + first,
                        draws[some].tolist(),
                        [each[some] for each in out],
                        None if numbers is None else numbers[some],
                        take,
                    )
            at = piece.stop

    def _fill_at_once(
        self,
        start: int,
        stop: int,
        draws: np.ndarray,
        data: Sequence[np.ndarray],
        labels: np.ndarray | None,
    ) -> bool:
        """Fill in records that are kept, or raw ones that look like the first one. False if there
        are others, or one has a label that it may not have."""
        transform, kept = self._transform, self.kept
        if kept and kept.has[start:stop].all():
            numbers: np.ndarray | None = kept.labels[start:stop]
            self._enter_all(kept.images[start:stop], draws, data)
        elif self._bulk:
            numbers = self._bulk.read(start, stop, data[0], self.copier)
            if numbers is None or self.labels.wrong(numbers) is not None:
                return False
            transform.choose_all(self.record_shape, draws, data[1])
        elif self._form:
            rows = self._database.rows(start, stop)
            plain = None if rows is None else self._form.small(rows)
            if plain is None:
                return False
            images, numbers = plain
            if self.labels.wrong(numbers) is not None:
                return False
            self._enter_all(images, draws, data)
        else:
            return False
        if labels is not None:
            labels[:] = numbers
        return True

    def _enter_all(self, images: np.ndarray, draws: np.ndarray, data: Sequence[np.ndarray]) -> None:
        """Let images of the first one's shape enter a batch."""
        transform = self._transform
        if self.raw:
            np.copyto(data[0], images)
            transform.choose_all(self.record_shape, draws, data[1])
        elif transform.random:
            for image, out, draw in zip(images, data[0], draws.tolist(), strict=True):
                transform.apply(image, out, draw)
        else:
            transform.apply(images, data[0])

    def _fill_one_by_one(
        self,
        records: Records,
        start: int,
        draws: Sequence[int],
        data: Sequence[np.ndarray],
        labels: np.ndarray | None,
        take: Take | None,
    ) -> None:
        for index, (key, value) in enumerate(records):
            if take and self._is_taken(take, key, value, index, draws[index], data, labels):
                continue
            out = [each[index] for each in data]
            if self.copier:
                out[0] = own = self._own_memory()
            try:
                datum, image = self._usable(key, value, self._memory(out[0]))
            except UserError:
                (datum, image), _ = self.bad.usable(start + index, len(self), self._one, self._none)
            else:
                if self.kept:
                    self.kept.put(start + index, image, datum.label)
            if len(out) > 2 and image.shape != self.record_shape:
                data[2][index] = 1
                continue
            self._enter(image, *out[:2], draws[index])
            if labels is not None:
                labels[index] = datum.label
            if self.copier:
                self.copier.put(own, index, data[0])

    def _is_taken(
        self,
        take: Take,
        key: memoryview,
        value: memoryview,
        place: int,
        draw: int,
        data: Sequence[np.ndarray],
        labels: np.ndarray | None,
    ) -> bool:
        """Whether a record is taken; then all else that belongs to it is written. One that is bad
        in any way is not, so that it is named as ever."""
        try:
            datum = parse_datum(value)
            shape = plain_shape(datum.data, self._transform.colour) if datum.encoded else None
            if shape is None:
                return False
            self._check(key, datum.label, shape)
        except (ValueError, UserError):
            return False
        part, choice = self._transform.part(shape, self.record_shape, draw)
        if not take(datum.data, part, place, data[0]):
            return False
        data[1][place] = choice
        if labels is not None:
            labels[place] = datum.label
        return True

    def _memory(self, out: np.ndarray) -> np.ndarray | None:
        """Where to decode an image: into the batch, if it goes there as it is."""
        if not self.encoded:
            return None
        return out.transpose(1, 2, 0) if self.raw else self._own_memory()

    def _own_memory(self) -> np.ndarray:
        """Memory of the calling thread's for an image: new memory for each takes time."""
        if self._local.image is None:
            channels, *extents = self.record_shape
            shape = (*extents, channels) if self.encoded else self.record_shape
            self._local.image = np.empty(shape, np.uint8)
        return self._local.image

    def _usable(
        self, key: memoryview, value: memoryview, memory: np.ndarray | None = None
    ) -> tuple[Datum, np.ndarray]:
        datum, image = self._decode(key, value, memory)
        self._check(key, datum.label, image.shape)
        if self.raw and image.dtype != np.uint8:
            raise UserError(
                f"{self._name(key)} holds float_data, but the first record bytes: give all records "
                "one kind"
            )
        return datum, image

    def _check(self, key: memoryview, label: int, shape: Shape) -> None:
        """UserError that names the record, if it has a label or a size that it may not have."""
        self.labels.check(label, self._name(key))
        if shape != self.record_shape:
            check_size(self._transform, shape, self.record_shape, self._name(key))

    @property
    def _none(self) -> str:
        return f"{self._database.path} has no record that can be used"

    def _one(self, number: int) -> tuple[Datum, np.ndarray]:
        [(key, value)] = self._database.read(number, number + 1)
        datum, image = self._usable(key, value)
        return datum, image.copy()

    def _first(self, number: int) -> tuple[memoryview, memoryview, Datum, np.ndarray]:
        """A record that says what all are like."""
        [(key, value)] = self._database.read(number, number + 1)
        return key, value, *self._decode(key, value)

    def _decode(
        self, key: memoryview, value: memoryview, memory: np.ndarray | None = None
    ) -> tuple[Datum, np.ndarray]:
        return read_record(self._database, key, value, self._transform.colour, memory)

    def _name(self, key: memoryview) -> str:
        return record_name(self._database, key)
