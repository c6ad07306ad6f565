"""Streams of labelled images, which enter a batch transformed or unchanged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ...backends.records import Part, RecordCopier
from ...backends.tensor import Shape
from ...errors import UserError
from ..ahead.decoded_cache import DecodedCache
from ..pictures.transform import Transform, check_size, record_draws
from .stream import RecordStream

Take = Callable[[memoryview, Part, int, np.ndarray], bool]
"""Whether a plain JPEG, of which a part belongs to a place of these images, is left to the caller
to decode."""


class Labelled(NamedTuple):
    """An image (channels, height, width), and its label."""

    image: np.ndarray
    label: int


@dataclass
class Rows:
    """Consecutive rows of a batch for records, and the random bits of each record.

    images: (N, channels, height, width). table: of `transform`, for raw images. labels: if they are
    wanted. other: if images are to be whole, 1 for one that cannot be had so, as it has another
    shape than the first. take: is asked for each plain JPEG of interleaved records.
    """

    images: np.ndarray
    draws: np.ndarray
    table: np.ndarray | None = None
    labels: np.ndarray | None = None
    other: np.ndarray | None = None
    take: Take | None = None

    def part(self, which: slice) -> Rows:
        """A range of them."""
        if which == slice(0, len(self.draws)):
            return self
        table, labels, other = (
            None if array is None else array[which]
            for array in (self.table, self.labels, self.other)
        )
        return Rows(self.images[which], self.draws[which], table, labels, other, self.take)


class ImageStream(RecordStream[Labelled]):
    """Images with labels, over and over: what the layers Data and ImageData read.

    `shape` is the (channels, height, width) of every transformed image; `record_shape` that of the
    first one as it is. raw: whether to give images as they are, for the primitive `transform`; only
    bytes can be: afterwards `raw` tells whether they are, `raw_shape` their shape, and
    `interleaved` whether that has the channels last, as decoders write them. decoded: where images
    stay; copier: what copies records from `file`, in which they lie as they are, to where the
    batches lie, in memory of its own (set these before the first batch). The rest is as in
    RecordStream.
    """

    encoded: bool = True
    raw: bool = False
    file: BinaryIO | None = None
    copier: RecordCopier | None = None
    decoded: DecodedCache | None = None

    def __init__(
        self, count: int, none: str, transform: Transform, *, raw: bool = False, **options: Any
    ) -> None:
        super().__init__(count, none, **options)
        self._transform = transform
        (image, _), self._first = self.bad.usable(0, count, self.load, none)
        try:
            self.shape: Shape = transform.prepare(image.shape)
        except UserError as error:
            raise UserError(f"{error} (the first: {self.name(self._first)})") from error
        self.record_shape: Shape = image.shape
        varied = transform.augmentation is not None
        if varied and image.dtype != np.uint8:
            raise UserError(f"{self.name(self._first)}: augmentation_param is for images of bytes")
        self.raw = raw and image.dtype == np.uint8 and not varied

    @abstractmethod
    def load(self, record: int) -> Labelled:
        """An unchanged image. UserError that names one that cannot be read."""

    @abstractmethod
    def name(self, record: int) -> str:
        """The name of an image in messages."""

    @property
    def interleaved(self) -> bool:
        return self.raw and self.encoded

    @property
    def raw_shape(self) -> Shape:
        channels, *extents = self.record_shape
        return (*extents, channels) if self.interleaved else self.record_shape

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """The arguments of the primitive `cached_batch` for the images at these positions of the
        stream: int32 (*of positions, 5), the labels left at 0."""
        epochs, records = self.order(positions)
        return self._transform.rows(self.record_shape, self._seed, epochs, records)

    def fill_whole(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the unchanged images of the stream from `position` on, for `rows` to index.

        arrays: uint8 (N, *raw_shape); int32 (N,), the labels; and uint8 (N,), 1 for images that
        cannot be had so, as they have another shape than the first. UserError as of `fill`.
        """
        images, labels, other = arrays
        other[:] = 0
        table = np.empty((len(images), 3), np.int32)  # of no use: all is there
        self._fill(position, images, drawn=False, table=table, labels=labels, other=other)

    def fill(self, position: int, arrays: Sequence[np.ndarray], take: Take | None = None) -> None:
        """Write the images of the stream from `position` on into a batch.

        arrays: data (N, channels, height, width), and labels (N,) if they are wanted. Raw data are
        two arrays: uint8 (N, *raw_shape), and int32 (N, 3), the table of `transform`. take: see
        Rows. Raises UserError that names an image that cannot be read, or has another size.
        """
        images, *rest = arrays
        table = rest.pop(0) if self.raw else None
        labels = rest[0] if rest else None
        drawn = self._transform.random
        self._fill(position, images, drawn=drawn, table=table, labels=labels, take=take)

    def _fill(self, position: int, images: np.ndarray, *, drawn: bool, **parts: Any) -> None:
        """Write images to the parts of Rows. drawn: whether random bits are used."""
        self.check()
        epochs, records = self.order(np.arange(position, position + len(images)))
        draws = np.zeros(len(records), np.uint64)
        if drawn:
            draws = record_draws(self._seed, epochs, records)
        if self.interleaved:
            images = images.transpose(0, 3, 1, 2)
        self.fill_rows(records, Rows(images, draws, **parts))

    def fill_rows(self, records: np.ndarray, rows: Rows) -> None:
        """Write these images to their rows of a batch."""
        for at, record in enumerate(records.tolist()):
            draw = int(rows.draws[at])
            self.enter(self.usable(record, draw), draw, rows, at, rows.images[at])

    def read(self, record: int, draw: int = 0) -> Labelled:
        cache = self.decoded
        if cache and cache.has[record]:
            return Labelled(cache.images[record], int(cache.labels[record]))
        image, label = self.load(record)
        self.check_item(self.name(record), label, image.shape)
        if cache:
            cache.put(record, image, label)
        return Labelled(image, label)

    def check_item(self, name: str, label: int, shape: Shape) -> None:
        """UserError, by this name, for an image with an invalid label or size."""
        self.labels.check(label, name)
        if shape != self.record_shape:
            check_size(self._transform, shape, self.record_shape, name)

    def enter(self, item: Labelled, draw: int, rows: Rows, at: int, out: np.ndarray) -> None:
        """Write an image to `out`, and its label and table entry to its row of a batch."""
        if rows.other is not None and item.image.shape != self.record_shape:
            rows.other[at] = 1
            return
        if rows.table is not None:
            self._transform.keep(item.image, out, rows.table[at], draw)
        else:
            self._transform.apply(item.image, out, draw)
        if rows.labels is not None:
            rows.labels[at] = item.label
