"""Owns the stream of records of a Data layer: which comes when, and how it enters a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from osucaffe.backends.tensor import Shape
from osucaffe.errors import UserError

from .ahead import BadRecords
from .database import Database
from .datum import Datum, parse_datum, pixels
from .order import first_record, runs
from .transform import Transform, check_size, record_draws

Records = list[tuple[memoryview, memoryview]]
_SMALL = 16384


class DatumSource:
    """The records of a database, over and over in key order, transformed.

    The stream begins at a record below `rand_skip` that the seed picks. `shape` is the
    (channels, height, width) of every transformed record; it comes from the first one.
    block: as for order.runs. bad: what becomes of a record that cannot be used; where it is
    skipped, the next good record by key takes its place.
    raw: whether to give records as they are, for the primitive `transform`. Only bytes can be:
    afterwards `raw` tells whether they are.
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
        self._bad = bad or BadRecords()
        self._start = first_record(seed, rand_skip)
        with database.read(0, 1) as [(key, value)]:
            datum, image = self._decode(key, value)
            self.encoded = datum.encoded
            self._plain = _PlainForm.of(value, datum)
            self.shape: Shape = transform.prepare(image.shape)
            self.record_shape: Shape = image.shape
            self.raw = raw and image.dtype == np.uint8
        self._enter: Callable[..., None] = transform.keep if self.raw else transform.apply

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the records of the stream from `position` on into a batch.

        arrays: data (N, channels, height, width), and labels (N,) if they are wanted. Raw data are
        two arrays: uint8 of `record_shape`, and int32 (N, 3), the table of `transform`.
        Raises UserError that names the key of a record that is damaged or of another size.
        """
        parts = 2 if self.raw else 1
        data, labels = arrays[:parts], arrays[parts] if len(arrays) > parts else None
        at = 0
        for epoch, start, stop in runs(
            self._start + position,
            len(data[0]),
            len(self._database),
            block=self._block,
            seed=self._seed,
        ):
            draws: Sequence[int] = ()
            if self._transform.random:
                records = np.arange(start, stop)
                draws = record_draws(self._seed, np.full_like(records, epoch), records)
            end = at + stop - start
            with self._database.read(start, stop) as found:
                fill = self._fill_plain if self._plain else self._fill_any
                piece = [each[at:end] for each in data]
                fill(start, found, draws, piece, None if labels is None else labels[at:end])
            at = end

    def _fill_any(
        self,
        start: int,
        records: Records,
        draws: Sequence[int],
        data: Sequence[np.ndarray],
        labels: np.ndarray | None,
    ) -> None:
        for index, (key, value) in enumerate(records):
            try:
                datum, image = self._usable(key, value)
            except UserError as error:
                self._bad.found(error)
                datum, image = self._next_usable(start + index)
            self._enter(image, *(each[index] for each in data), draws[index] if draws else 0)
            if labels is not None:
                labels[index] = datum.label

    def _fill_plain(
        self,
        start: int,
        records: Records,
        draws: Sequence[int],
        data: Sequence[np.ndarray],
        labels: np.ndarray | None,
    ) -> None:
        """The same for small raw records: all at once where they look like the first one."""
        assert self._plain is not None
        rows = self._plain.rows([value for _, value in records])
        if rows is None:
            self._fill_any(start, records, draws, data, labels)
            return
        images = self._plain.images(rows)
        if draws:
            for image, *out, draw in zip(images, *data, draws, strict=True):
                self._enter(image, *out, draw)
        else:
            self._enter(images, *data)
        if labels is not None:
            labels[:] = self._plain.labels(rows)

    def _usable(self, key: memoryview, value: memoryview) -> tuple[Datum, np.ndarray]:
        datum, image = self._decode(key, value)
        if image.shape != self.record_shape:
            check_size(self._transform, image.shape, self.record_shape, self._name(key))
        if self.raw and image.dtype != np.uint8:
            raise UserError(
                f"{self._name(key)} holds float_data, but the first record bytes: give all records "
                "one kind"
            )
        return datum, image

    def _next_usable(self, number: int) -> tuple[Datum, np.ndarray]:
        """The first record behind a bad one that can be used: it takes the place."""
        while True:  # the first record of all can be used
            number = (number + 1) % len(self._database)
            with self._database.read(number, number + 1) as [(key, value)]:
                try:
                    datum, image = self._usable(key, value)
                    return datum, image.copy()
                except UserError:
                    continue

    def _decode(self, key: memoryview, value: memoryview) -> tuple[Datum, np.ndarray]:
        try:
            datum = parse_datum(value)
            return datum, pixels(datum, self._transform.colour)
        except ValueError as error:
            raise UserError(f"{self._name(key)} cannot be read: {error}") from error

    def _name(self, key: memoryview) -> str:
        return f'record "{bytes(key).decode(errors="replace")}" of {self._database.path}'


class _PlainForm:
    """The byte layout of small raw records that differ in their pixels and labels only.

    Such records are told apart from others, and read, by whole batches: nothing is parsed.
    """

    def __init__(self, first: bytes, datum: Datum) -> None:
        self._shape = datum.shape
        self._pixels = slice(datum.offset, datum.offset + len(datum.data))
        self._label = self._pixels.stop + 1
        fixed = np.ones(len(first), bool)
        fixed[self._pixels] = False
        fixed[self._label] = False
        self._fixed = np.flatnonzero(fixed)
        self._first = np.frombuffer(first, np.uint8)

    @classmethod
    def of(cls, value: memoryview, datum: Datum) -> _PlainForm | None:
        """The form of a record, or None if it is not that plain: header, pixels, label."""
        tail = bytes(value[datum.offset + len(datum.data) :])
        plain = tail[:1] == b"\x28" and len(tail) in (2, 4) and tail[1] < 0x80
        small = len(value) <= _SMALL and not datum.encoded and datum.values is None
        return cls(bytes(value), datum) if plain and small else None

    def rows(self, values: list[memoryview]) -> np.ndarray | None:
        """The records as the rows of one array, or None if one is of another form."""
        if any(len(value) != self._first.size for value in values):
            return None
        rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
        if (rows[:, self._fixed] != self._first[self._fixed]).any() or (
            rows[:, self._label] > 0x7F
        ).any():
            return None
        return rows

    def images(self, rows: np.ndarray) -> np.ndarray:
        return rows[:, self._pixels].reshape(-1, *self._shape)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        return rows[:, self._label]
