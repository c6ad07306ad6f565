"""Owns how `osucaffe classify` lets photographs enter a net: just as the records of `osucaffe data
folder` entered it in the TEST phase."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...backends.records import transform_record
from ...errors import UserError

if TYPE_CHECKING:
    from ...data.pictures.preprocessing import Preprocessing
    from ...data.sets.photo_set import PhotoSettings
    from ...pycaffe.image_input import ImageInput

logger = logging.getLogger("osucaffe")

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
"""Of the files in a folder, these are images."""


def find_photos_input(
    args: argparse.Namespace, trained: Preprocessing | None, entry: ImageInput
) -> PhotoInput | None:
    """How photographs enter, if the folder that they were prepared in, or the model's, tells.

    trained: how records entered in training. entry: the net's input. None too where options say
    something else of it.
    """
    from ...data.sets.photo_set import find_settings

    folder = Path(args.data or Path(args.model).parent)
    settings = find_settings(folder)
    if args.data and settings is None:
        raise UserError(
            f"--data {folder}: says nothing of how photographs were prepared: give the folder that "
            "osucaffe data folder has made"
        )
    otherwise = (args.image_dims, args.raw_scale, args.channel_swap, args.mean, args.input_scale)
    changed = any(each is not None for each in otherwise)
    if settings is None or trained is None or changed or entry.channels != 3:
        return None
    found = PhotoInput(settings, trained, entry.extents)
    inner, size = "x".join(map(str, entry.extents)), settings.size
    crop = f", of which the middle of {inner}" if (entry.extents != size).any() else ""
    logger.info(
        "Photos are preprocessed like those of %s (%s, %dx%d)%s; %s (trained: %s)",
        folder, settings.fit, size, size, crop, trained, trained.origin,
    )  # fmt: skip
    return found


def find_files(given: list[str]) -> Iterator[str]:
    """The files that are named, and those in the folders that are named."""
    for name in given:
        if not Path(name).is_dir():
            yield name
            continue
        inside = [path for path in Path(name).rglob("*") if path.suffix.lower() in SUFFIXES]
        if not inside:
            raise UserError(f"{name}: there is no image in this folder ({', '.join(SUFFIXES)})")
        yield from map(str, sorted(inside))


class PhotoInput:
    """The way of a photograph into a net. extents: height and width of its input."""

    def __init__(
        self, settings: PhotoSettings, trained: Preprocessing, extents: Sequence[int] | np.ndarray
    ) -> None:
        self.settings = settings
        self._scale = np.float32(trained.scale)
        self._extents = tuple(int(each) for each in extents)
        size = settings.size
        if max(self._extents) > size:
            raise UserError(
                f"the net's input is {self._extents[0]}x{self._extents[1]}, larger than the "
                f"photographs that were prepared, {size}x{size}: give --image_dims"
            )
        mean = trained.mean()
        if mean is not None and mean.ndim == 1:
            mean = mean[:, None, None]
        elif mean is not None and mean.shape != (3, size, size):
            raise UserError(
                f"{trained.origin}: its mean is {mean.shape[1]}x{mean.shape[2]}, but photographs "
                f"were prepared as {size}x{size}: give --mean"
            )
        self._mean = mean

    def enter(self, path: str, oversample: bool) -> np.ndarray:
        """What enters of a file, (1 or 10, 3, height, width): its middle, or ten parts."""
        record = self.settings.read(path).transpose(2, 0, 1)
        down, right = (self.settings.size - each for each in self._extents)
        parts = [(down // 2, right // 2, 0)]
        if oversample:
            corners = [(0, 0), (0, right), (down, 0), (down, right), parts[0][:2]]
            parts = [(*each, mirrored) for mirrored in (0, 1) for each in corners]
        entered = np.empty((len(parts), 3, *self._extents), np.float32)
        for out, part in zip(entered, parts, strict=True):
            transform_record(record, out, part, mean=self._mean, scale=self._scale)
        return entered


def load_upright(path: str) -> np.ndarray:
    """The pixels of a file as `io.load_pixels` gives them, turned as its EXIF data say."""
    from ...data.sets.folder import orientation, turned
    from ...pycaffe.io import decode_pixels, load_content

    content = load_content(path)
    image = decode_pixels(content, path)
    try:
        lies = orientation(content)
    except UserError:  # no Pillow: JPEGs are read without
        return image
    return np.ascontiguousarray(turned(image, lies))


def read_names(args: argparse.Namespace, count: int) -> list[str]:
    """The names of so many classes: of --labels, else those in the folder of --data or beside the
    model, if they fit; else numbers."""
    from ...data.sets.photo_set import LABELS, read_labels

    if args.labels is not None:
        labels = read_labels(Path(args.labels))
        if len(labels) != count:
            classes = f"{count} classes of the net"
            raise UserError(f"{args.labels}: has {len(labels)} labels for {classes}")
        return labels
    numbers = [f"class {index}" for index in range(count)]
    path = Path(args.data or Path(args.model).parent) / LABELS
    if not path.is_file():
        return numbers
    labels = read_labels(path)
    if len(labels) != count:
        logger.warning("%s: ignored: %d names for %d classes", path, len(labels), count)
        return numbers
    logger.info("Names of classes: %s", path)
    return labels
