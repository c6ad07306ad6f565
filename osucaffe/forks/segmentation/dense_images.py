"""Lists of images with labels for their pixels: reading them, and their stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...backends.random import mix64
from ...backends.tensor import Shape
from ...data.pictures.image import read_image, resize
from ...data.pictures.transform import Transform, holds, random_corner, shape_text, unlike_first
from ...data.streams.image_list import read_entries
from ...data.streams.stream import RecordStream
from ...errors import UserError
from ...parsing import as_int


class Pair(NamedTuple):
    """A line of a list: the files of an image and of its labels, or the label of all its pixels."""

    image: str
    label: str | int


def read_pairs(path: str, root: str = "", kind: str = "PIXEL", unknown: int = 0) -> list[Pair]:
    """The lines of a file, root put before each name. Bad lines raise UserError.

    kind: of a line. PIXEL: `IMAGE LABELS`, the names of two files. IMAGE: `IMAGE LABEL`, a whole
    number. NONE: `IMAGE`; the label is unknown.
    """
    form, what = {
        "PIXEL": ("IMAGE LABELS", ", a blank, and that of its image of labels"),
        "IMAGE": ("IMAGE LABEL", ", a blank, and a whole number"),
        "NONE": ("IMAGE", ""),
    }[kind]

    def parse(line: str) -> Pair:
        name, *labels = line.split()
        if kind == "NONE":
            return Pair(root + name, unknown)
        (label,) = labels
        return Pair(root + name, root + label if kind == "PIXEL" else as_int(label))

    return read_entries(path, "images", form, f"the name of an image{what}", parse)


def read_labels(path: str, size: tuple[int, int] | None) -> np.ndarray:
    """An image of labels (height, width); where a size is given, each place has the nearest one."""
    label = read_image(path, False)[..., 0]
    return nearest(label, *size) if size else label


def read_gray(path: str, size: tuple[int, int] | None) -> np.ndarray:
    """A gray image (height, width) as labels, 0 to 255, resized by bilinear means."""
    return read_image(path, False, size)[..., 0]


def read_edges(path: str, size: tuple[int, int] | None) -> np.ndarray:
    """A gray image (height, width) as labels: 1 where, resized, it is brighter than half (HED)."""
    return (read_gray(path, size) > 127).astype(np.uint8)


def nearest(labels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Labels (height, width) at another size: of each place that of the pixel that it falls on."""
    rows, columns = (
        np.arange(target) * extent // target
        for target, extent in zip((height, width), labels.shape, strict=True)
    )
    return labels[rows[:, None], columns]


class DenseImageSource(RecordStream[tuple[np.ndarray, np.ndarray]]):
    """The images of a list of pairs with their labels, transformed alike.

    kind: as of `read_pairs`. size: (height, width) of all images (None: their own). scales: factors
    of the size, one of which is drawn for each. crop: (height, width), at random
    if random_crop and else at the centre. unknown: the label of the padding of an image that is
    smaller than the crop (None: not allowed). mirror: half of them are mirrored. divide: the
    factor by which labels are smaller. read_labels: reads images of labels. varies: images may
    have any size, for use one by one. The rest is as in RecordStream. `shape` is that of the
    resulting images, `label_shape` (1, height, width) that of labels.

    A batch is data (N, *shape), labels (N, *label_shape) and, if requested, the fractions of
    height and width that each image fills (N, 1, 1, 2).
    """

    def __init__(
        self,
        path: str,
        transform: Transform,
        *,
        root: str = "",
        kind: str = "PIXEL",
        colour: bool = True,
        size: tuple[int, int] | None = None,
        scales: Sequence[float] = (),
        crop: tuple[int, int] | None = None,
        random_crop: bool = False,
        unknown: int | None = None,
        mirror: bool = False,
        divide: int = 1,
        read: Callable[[str, tuple[int, int] | None], np.ndarray] = read_labels,
        varies: bool = False,
        **options: Any,
    ) -> None:
        self._path, self._transform = path, transform
        self._pairs = read_pairs(path, root, kind, unknown or 0)
        none = f"the list {path} has no image that can be used"
        super().__init__(len(self._pairs), none, **options)
        self._colour, self._size, self._scales, self._divide = colour, size, scales, divide
        self._crop, self._random_crop, self._mirror = crop, random_crop, mirror
        self._unknown, self._read_labels, self._varies = unknown, read, varies
        (image, _), _ = self.bad.usable(0, len(self), self._load, none)
        self.record_shape: Shape = image.shape
        self.shape: Shape = transform.prepare(image.shape)
        if crop:
            if unknown is None and not holds(image.shape[1:], crop):
                raise UserError(
                    f"a crop of {shape_text(crop)} does not fit {self._pairs[0].image}, which is "
                    f"{shape_text(image.shape)} (channels x height x width)"
                )
            self.shape = (image.shape[0], *crop)
        height, width = (extent // divide for extent in self.shape[1:])
        self.label_shape: Shape = (1, height, width)

    def one(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """The image (channels, height, width) and labels (1, height, width) at a position of the
        stream, in their own size."""
        [(record, draw)] = self.drawn(position, 1)
        image, label = self.usable(record, draw)
        data, labels = np.empty(image.shape, np.float32), np.empty((1, *label.shape), np.float32)
        self.write((image, label), draw, [data, labels])
        return data, labels

    def write(
        self, item: tuple[np.ndarray, np.ndarray], draw: int, arrays: Sequence[np.ndarray]
    ) -> None:
        """Transform an image and its labels alike."""
        (image, label), (data, labels, *filled) = item, arrays
        for array in filled:
            array[0, 0] = np.minimum(image.shape[1:], data.shape[1:])
        out = labels[0]
        if self._scales:
            factor = self._scales[mix64(draw) % len(self._scales)]
            height, width = (max(1, int(extent * factor)) for extent in label.shape)
            image = resize(image.transpose(1, 2, 0), height, width).transpose(2, 0, 1)
            label = nearest(label, height, width)
        full = np.empty(image.shape, np.float32) if self._crop else data
        self._transform.apply(image, full)
        if self._crop:
            height, width = self._crop
            top, left = (max(0, a - b) for a, b in zip(label.shape, self._crop, strict=True))
            top, left = (
                random_corner(top, left, draw) if self._random_crop else (top // 2, left // 2)
            )
            part = label[top : top + height, left : left + width]
            if part.shape != self._crop:
                data[...], out[...] = 0, self._unknown
            rows, columns = part.shape
            data[:, :rows, :columns] = full[:, top : top + height, left : left + width]
            out[:rows, :columns] = part
        else:
            out[...] = label
        if self._mirror and draw & 1:
            data[...], out[...] = data[..., ::-1].copy(), out[..., ::-1].copy()

    def read(self, record: int, draw: int) -> tuple[np.ndarray, np.ndarray]:
        image, label = self._load(record)
        pair = self._pairs[record]
        any_size = self._varies
        if self._crop:
            any_size |= self._unknown is not None or holds(image.shape[1:], self._crop)
        if image.shape != self.record_shape and not any_size:
            remedy = "set new_height and new_width, or give all images one size"
            raise unlike_first(pair.image, image.shape, self.record_shape, remedy)
        self.labels.check_all(label, str(pair.label))
        return image, label

    def _load(self, record: int) -> tuple[np.ndarray, np.ndarray]:
        """An image (channels, height, width) and its labels (height, width)."""
        pair = self._pairs[record]
        image = read_image(pair.image, self._colour, self._size).transpose(2, 0, 1)
        height, width = (extent // self._divide for extent in image.shape[1:])
        if isinstance(pair.label, int):
            return image, np.full((height, width), pair.label)
        given = self._size or self._divide > 1
        label = self._read_labels(pair.label, (height, width) if given else None)
        if label.shape != (height, width):
            raise UserError(
                f"{pair.label} is {shape_text(label.shape)}, but its image {pair.image} is "
                f"{shape_text(image.shape[1:])} (height x width): they must be of one size, or set "
                "new_height and new_width"
            )
        return image, label


@dataclass(frozen=True)
class Sizes:
    """What sizes are drawn: factors of an image's own, from low to high in steps of 1/1000, then
    cut to a multiple of `multiple` and to `most` (height, width). balance: a crop that one label
    fills to more than 80 % is drawn again, up to 9 times."""

    low: float = 1.0
    high: float = 1.0
    multiple: int = 1
    most: tuple[int, int] | None = None
    balance: bool = False


class SizedImageSource(DenseImageSource):
    """Images one by one, each in a size of its own (TSN's SegData): see Sizes."""

    def __init__(self, path: str, transform: Transform, sizes: Sizes, **options: Any) -> None:
        self._sizes = sizes
        super().__init__(path, transform, random_crop=True, varies=True, **options)

    def one(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """The image (channels, height, width) and labels (1, height, width) at a position."""
        sizes, [(record, draw)] = self._sizes, self.drawn(position, 1)
        whole, labels = self.usable(record, draw)
        for _ in range(10 if sizes.balance else 1):
            draw = mix64(draw)
            steps = int((sizes.high - sizes.low) * 1000) + 1
            factor = sizes.low + draw % steps / 1000
            extents = [int(extent * factor + 0.5) for extent in labels.shape]
            image = resize(whole.transpose(1, 2, 0), *extents).transpose(2, 0, 1)
            crop = [extent // sizes.multiple * sizes.multiple for extent in extents]
            if sizes.most:
                crop = [min(pair) for pair in zip(crop, sizes.most, strict=True)]
            if min(crop) < 1:
                size = shape_text((extents[0], extents[1]))
                raise UserError(
                    f"{self._pairs[record].image} is {size}: less than the stride of "
                    f"{sizes.multiple}"
                )
            self._crop = (crop[0], crop[1])
            arrays = [np.empty((rows, *crop), np.float32) for rows in (len(image), 1)]
            self.write((image, nearest(labels, *extents)), mix64(draw), arrays)
            if np.unique(arrays[1], return_counts=True)[1].max() <= 0.8 * arrays[1].size:
                break
        return arrays[0], arrays[1]
