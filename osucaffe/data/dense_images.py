"""Owns lists of images with an image of labels beside each: reading them, and their stream."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from osucaffe.backends.tensor import Shape
from osucaffe.errors import UserError
from osucaffe.labels import Labels

from .ahead import BadRecords
from .image import read_image
from .order import first_record, permutation
from .transform import Transform, random_corner, record_draws, shape_text


class Pair(NamedTuple):
    """A line of a list: the files of an image and of its labels."""

    image: str
    label: str


def read_pairs(path: str, root: str = "") -> list[Pair]:
    """The lines `IMAGE LABELS` of a file, root put before each name. Bad lines raise UserError."""
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the list of images {path}: {error}") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if len(words) == 2:
            pairs.append(Pair(root + words[0], root + words[1]))
        elif words:
            raise UserError(
                f'{path}, line {number}: "{line}" is not the name of an image, a blank, and that '
                "of its image of labels"
            )
    if not pairs:
        raise UserError(f"the list of images {path} is empty: a line is IMAGE LABELS")
    return pairs


def nearest(labels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Labels (height, width) at another size: of each place that of the pixel that it falls on."""
    rows, columns = (
        np.arange(wanted) * extent // wanted
        for wanted, extent in zip((height, width), labels.shape, strict=True)
    )
    return labels[rows[:, None], columns]


class DenseImageSource:
    """The images of a list of pairs with their labels, over and over, transformed alike.

    size: (height, width) of all images (None: their own). crop: (height, width) of what is cut
    out, at random in TRAIN and at the centre else. mirror: half of them are mirrored. divide:
    labels are so much smaller than images. The rest is as in ImageListSource. `shape` is that of
    the images that come out, `label_shape` (1, height, width) that of labels.
    """

    def __init__(
        self,
        path: str,
        transform: Transform,
        *,
        root: str = "",
        colour: bool = True,
        size: tuple[int, int] | None = None,
        crop: tuple[int, int] | None = None,
        random_crop: bool = False,
        mirror: bool = False,
        divide: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        rand_skip: int = 0,
        bad: BadRecords | None = None,
    ) -> None:
        self._path, self._transform, self._bad = path, transform, bad or BadRecords()
        self._pairs = read_pairs(path, root)
        self._colour, self._size, self._divide = colour, size, divide
        self._crop, self._random_crop, self._mirror = crop, random_crop, mirror
        self._seed, self._shuffle = seed, shuffle
        self._start = first_record(seed, rand_skip)
        self.labels = Labels()
        image, _ = self._read(0)
        self.record_shape: Shape = image.shape
        self.shape: Shape = transform.prepare(image.shape)
        if crop:
            if min(np.subtract(image.shape[1:], crop)) < 0:
                raise UserError(
                    f"a crop of {shape_text(crop)} does not fit {self._pairs[0].image}, which is "
                    f"{shape_text(image.shape)} (channels x height x width)"
                )
            self.shape = (image.shape[0], *crop)
        height, width = (extent // divide for extent in self.shape[1:])
        self.label_shape: Shape = (1, height, width)

    def __len__(self) -> int:
        return len(self._pairs)

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write the records of the stream from `position` on into a batch: data (N, *shape) and
        labels (N, *label_shape). Raises UserError that names what cannot be used."""
        data, labels = arrays
        places = self._start + position + np.arange(len(data))
        epochs, places = np.divmod(places, len(self))
        if self._shuffle:
            pairs = zip(epochs.tolist(), places.tolist(), strict=True)
            chosen = [permutation(self._seed, e, len(self))[place] for e, place in pairs]
            places = np.array(chosen)
        draws = record_draws(self._seed, epochs, places).tolist()
        for at, record in enumerate(places.tolist()):
            self._enter(*self._usable(record), draws[at], data[at], labels[at, 0])

    def _enter(
        self, image: np.ndarray, label: np.ndarray, draw: int, data: np.ndarray, out: np.ndarray
    ) -> None:
        """Transform an image and its labels alike into their places in a batch."""
        whole = np.empty(image.shape, np.float32) if self._crop else data
        self._transform.apply(image, whole)
        if self._crop:
            height, width = self._crop
            top, left = image.shape[1] - height, image.shape[2] - width
            top, left = (
                random_corner(top, left, draw) if self._random_crop else (top // 2, left // 2)
            )
            rows, columns = slice(top, top + height), slice(left, left + width)
            data[...], label = whole[:, rows, columns], label[rows, columns]
        out[...] = label
        if self._mirror and draw & 1:
            data[...], out[...] = data[..., ::-1].copy(), out[..., ::-1].copy()

    def _usable(self, record: int) -> tuple[np.ndarray, np.ndarray]:
        """A record, or where it is bad and to be skipped the next one of the list that is not."""
        for place in range(record, record + len(self)):
            try:
                image, label = self._read(place % len(self))
                pair = self._pairs[place % len(self)]
                if image.shape != self.record_shape and (
                    not self._crop or min(np.subtract(image.shape[1:], self._crop)) < 0
                ):
                    raise UserError(
                        f"{pair.image} is {shape_text(image.shape)}, but the first of the list "
                        f"{self._path} is {shape_text(self.record_shape)}: set new_height and "
                        "new_width, or give all images one size"
                    )
                self.labels.check_all(label, pair.label)
                return image, label
            except UserError as error:
                self._bad.found(error)
        raise UserError(f"the list {self._path} has no image that can be used")

    def _read(self, record: int) -> tuple[np.ndarray, np.ndarray]:
        """An image (channels, height, width) and its labels (height, width)."""
        pair = self._pairs[record]
        image = read_image(pair.image, self._colour, self._size).transpose(2, 0, 1)
        label = read_image(pair.label, False)[..., 0]
        wanted = tuple(extent // self._divide for extent in image.shape[1:])
        if self._size or self._divide > 1:
            label = nearest(label, *wanted)
        if label.shape != wanted:
            raise UserError(
                f"{pair.label} is {shape_text(label.shape)}, but its image {pair.image} is "
                f"{shape_text(image.shape[1:])} (height x width): they must be of one size, or set "
                "new_height and new_width"
            )
        return image, label
