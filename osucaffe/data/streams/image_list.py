"""Owns lists of image files: reading the list, and the stream of its images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from ...backends.records import RecordCopier
from ...backends.tensor import Shape
from ...errors import UserError
from ...files import read_lines
from ...labels import Labels
from ..ahead.decoded_cache import Kept
from ..ahead.parallel_map import BadRecords
from ..pictures.image import read_image
from ..pictures.transform import Transform, check_size, record_draws
from .order import first_record, records_at


class Entry(NamedTuple):
    """A line of a list: the file's name as it stands there, and its label."""

    name: str
    label: int


def read_list(path: str) -> list[Entry]:
    """The lines `NAME LABEL` of a file; a name may hold blanks. Bad lines raise UserError."""
    entries = []
    for number, line in enumerate(read_lines(path, "the list of images"), 1):
        if not line.strip():
            continue
        name, _, label = line.rstrip().rpartition(" ")
        try:
            entries.append(Entry(name.strip(), int(label)))
            good = name and -(1 << 31) <= entries[-1].label < 1 << 31
        except ValueError:
            good = False
        if not good:
            raise UserError(
                f'{path}, line {number}: "{line}" is not an image\'s name, a blank, and a label '
                "(a whole number of 32 bits)"
            )
    if not entries:
        raise UserError(f"the list of images {path} is empty: a line is NAME LABEL")
    return entries


def check_root(root: str, entries: Sequence[Entry]) -> None:
    """UserError for a folder that lacks its last slash, so that no name of the list follows it."""
    first = root + entries[0].name
    if root and not root.endswith("/") and Path(root).is_dir() and not Path(first).exists():
        raise UserError(
            f"there is no image {first}: {root} is put before each name as it "
            f"stands, so end it with a slash ({root}/)"
        )


class ImageListSource:
    """The images of a list, over and over, resized and transformed.

    root: put before each name as it is. size: (height, width) of all images (None: their own).
    shuffle: another order in each epoch. The stream begins at an image below `rand_skip` that
    the seed picks. bad: what becomes of an image that cannot be used; where it is skipped, the
    next good one of the list takes its place. `shape` is the (channels, height, width) of what
    comes out. raw: whether to give the images as they are, for the primitive `transform`, which
    have `raw_shape` then, the channels last. labels: those that an image may have (set it before
    the first batch); kept: where images stay (likewise).
    """

    interleaved = encoded = True
    file: BinaryIO | None = None
    copier: RecordCopier | None = None

    def __init__(
        self,
        path: str,
        transform: Transform,
        *,
        root: str = "",
        colour: bool = True,
        size: tuple[int, int] | None = None,
        shuffle: bool = False,
        seed: int = 0,
        rand_skip: int = 0,
        bad: BadRecords | None = None,
        raw: bool = False,
    ) -> None:
        self._path, self._root, self._size, self._colour = path, root, size, colour
        self._entries = read_list(path)
        check_root(root, self._entries)
        self._transform = transform
        self._seed, self._shuffle = seed, shuffle
        self.bad = bad or BadRecords()
        self.labels = Labels()
        self.kept: Kept | None = None
        self._start = first_record(seed, rand_skip)
        image, first = self.bad.usable(0, len(self), self._read, self._none)
        self.record_shape: Shape = image.shape
        try:
            self.shape: Shape = transform.prepare(image.shape)
        except UserError as error:
            raise UserError(f"{error} (the first: {self._name(first)})") from error
        self.raw = raw
        self.raw_shape: Shape = (*image.shape[1:], image.shape[0])

    def __len__(self) -> int:
        return len(self._entries)

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """What the primitive `cached_batch` is to make of the images at these positions of the
        stream: int32 (*of positions, 5), the labels left at 0."""
        epochs, records = self._records(positions)
        return self._transform.rows(self.record_shape, self._seed, epochs, records)

    def fill_whole(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the images of the stream from `position` on as they are, for `rows` to choose of.

        arrays: uint8 (N, *raw_shape); int32 (N,), the labels; and uint8 (N,), 1 for images that
        cannot be had so, as they have another size than the first. UserError as of `fill`.
        """
        images, labels, other = arrays
        _, records = self._records(position + np.arange(len(labels)))
        for at, record in enumerate(records.tolist()):
            image, record = self._usable(record)
            labels[at] = self._entries[record].label
            other[at] = image.shape != self.record_shape
            if not other[at]:
                images[at] = image.transpose(1, 2, 0)

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the images of the stream from `position` on into a batch.

        arrays: data (N, channels, height, width) and labels (N,). Raw data are two arrays: uint8
        (N, *raw_shape), and int32 (N, 3), the table of `transform`. Raises UserError that names
        an image that cannot be read, or has another size.
        """
        *data, labels = arrays
        if self.raw:
            data[0] = data[0].transpose(0, 3, 1, 2)
        epochs, records = self._records(position + np.arange(len(labels)))
        draws = record_draws(self._seed, epochs, records).tolist()
        enter: Callable[..., None] = self._transform.keep if self.raw else self._transform.apply
        for at, record in enumerate(records.tolist()):
            image, record = self._usable(record)
            enter(image, *(each[at] for each in data), draws[at])
            labels[at] = self._entries[record].label

    def _usable(self, record: int) -> tuple[np.ndarray, int]:
        """An image, or where it is bad and to be skipped the next one of the list that is not."""
        return self.bad.usable(record, len(self), self._checked, self._none)

    @property
    def _none(self) -> str:
        return f"the list {self._path} has no image that can be used"

    def _checked(self, record: int) -> np.ndarray:
        self.labels.check(self._entries[record].label, self._name(record))
        image = self._read(record)
        if image.shape != self.record_shape:
            check_size(self._transform, image.shape, self.record_shape, self._name(record))
        return image

    def _records(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The epochs and the images at these positions of the stream."""
        return records_at(
            self._start + positions, len(self), block=int(self._shuffle), seed=self._seed
        )

    def _read(self, record: int) -> np.ndarray:
        if self.kept and self.kept.has[record]:
            image: np.ndarray = self.kept.images[record]
            return image
        try:
            image = read_image(self._root + self._entries[record].name, self._colour, self._size)
        except UserError as error:
            raise UserError(f"{error} (image {record + 1} of the list {self._path})") from error
        image = image.transpose(2, 0, 1)
        if self.kept:
            self.kept.put(record, image, self._entries[record].label)
        return image

    def _name(self, record: int) -> str:
        name = self._root + self._entries[record].name
        return f"image {name} (image {record + 1} of the list {self._path})"
