"""The stream of patches for super-resolution: one region at two resolutions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from ...backends.tensor import Shape
from ...errors import UserError
from ..databases.datum import parse_datum, pixels
from ..databases.record_database import Database
from ..pictures.bicubic import shrink
from ..pictures.transform import Transform
from .stream import RecordStream


class Placement(NamedTuple):
    """The corner of a patch in the small image, and its orientation, one of eight."""

    row: int
    column: int
    way: int


def turn(patch: np.ndarray, way: int) -> np.ndarray:
    """A square (..., side, side) in one of its eight orientations: mirrored for 4 and up."""
    return np.rot90(patch[..., ::-1] if way & 4 else patch, way & 3, (-2, -1))


def choose(extents: tuple[int, int], side: int, draw: int) -> Placement:
    """The placement that 64 random bits pick in an image of (height, width), uniformly."""
    height, width = extents
    row = (height - side + 1) * (draw >> 3 & 0x1FFFFFFF) >> 29
    return Placement(row, (width - side + 1) * (draw >> 32) >> 32, draw & 7)


class PatchSource(RecordStream[tuple[np.ndarray, np.ndarray]]):
    """A patch of each image of a database in each epoch, as it is and `scale` times smaller.

    low: the smaller images, under the keys of the large ones; None: they are made by bicubic
    shrinking. side: of the small patches. random: the images come in another order in each epoch,
    and the patches are cut, turned and mirrored at random by seed, epoch and record; else
    they come by key, from the centre. The rest is as in RecordStream. `shapes`: those of a small
    and a large patch; a batch is an array of each.
    """

    def __init__(
        self,
        high: Database,
        low: Database | None,
        transform: Transform,
        *,
        scale: int,
        side: int,
        random: bool,
        **options: Any,
    ) -> None:
        none = f"{high.path} has no record that can be used"
        super().__init__(len(high), none, block=int(random), **options)
        self._high, self._low, self._transform = high, low, transform
        self._scale, self._side, self._random = scale, side, random
        if low is not None:
            _check_keys(high, low)
        self._channels, _ = self.bad.usable(0, len(high), self._depth, none)
        self.shapes: list[Shape] = [
            transform.prepare((self._channels, extent, extent)) for extent in (side, side * scale)
        ]

    def check(self) -> None:
        for database in filter(None, (self._high, self._low)):
            database.check()

    def write(
        self, item: tuple[np.ndarray, np.ndarray], draw: int, arrays: Sequence[np.ndarray]
    ) -> None:
        for patch, out in zip(item, arrays, strict=True):
            self._transform.apply(patch, out)

    def _depth(self, record: int) -> int:
        [(key, value)] = self._high.read(record, record + 1)
        return self._high.decode(key, value, self._transform.colour)[1].shape[0]

    def read(self, record: int, draw: int) -> tuple[np.ndarray, np.ndarray]:
        scale, side = self._scale, self._side
        large = self._image(self._high, record)
        height, width = large.shape[1:]
        extents = height // scale, width // scale
        if min(extents) < side:
            raise UserError(
                f"{_name(self._high, record)} is {height}x{width} (height x width), too small for "
                f"a patch of {side * scale}x{side * scale}: leave it out, or lower patch_size"
            )
        cut = choose(extents, side, draw)
        if not self._random:
            cut = Placement((extents[0] - side) // 2, (extents[1] - side) // 2, 0)
        box = slice(cut.row, cut.row + side), slice(cut.column, cut.column + side)
        rows, columns = (slice(part.start * scale, part.stop * scale) for part in box)
        if self._low is None:
            small = shrink(large, scale, box)
        else:
            image = self._image(self._low, record)
            self._check_sizes(record, image.shape, large.shape)
            small = image[:, *box]
        return turn(small, cut.way), turn(large[:, rows, columns], cut.way)

    def _image(self, database: Database, record: int) -> np.ndarray:
        try:
            # Of a raw record only the pages of the patch will be read.
            image = pixels(parse_datum(database.value(record)), self._transform.colour)
        except ValueError as error:
            raise UserError(f"{_name(database, record)} cannot be read: {error}") from error
        if len(image) != self._channels:
            raise UserError(
                f"{_name(database, record)} has {len(image)} channels, but the first record "
                f"{self._channels}: set force_color or force_gray in transform_param (for images "
                "that are kept encoded), or convert all alike"
            )
        return image

    def _check_sizes(self, record: int, small: Shape, large: Shape) -> None:
        if tuple(self._scale * extent for extent in small[1:]) != large[1:]:
            assert self._low is not None
            sizes = [f"{height}x{width}" for _, height, width in (large, small)]
            raise UserError(
                f"{_name(self._high, record)} is {sizes[0]} (height x width), but "
                f"{_name(self._low, record)} is {sizes[1]}: not {self._scale} times smaller. "
                "Correct `scale`, or make the small image again"
            )


def _name(database: Database, record: int) -> str:
    return database.name(database.key(record))


def _check_keys(high: Database, low: Database) -> None:
    """Reject databases whose records do not match."""
    for key, other in zip_longest(high.keys(), low.keys()):
        if key != other:
            missing, there = (low, high) if other is None or (key and key < other) else (high, low)
            text = (key if there is high else other).decode(errors="replace")
            raise UserError(
                f'record "{text}" of {there.path} has no partner in {missing.path}: make both '
                "databases from lists that name the same files in the same order"
            )
