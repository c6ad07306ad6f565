"""How an image enters a net: as its images did in training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..backends.records import Choice, ScaledCrops, transform_record
from ..data.pictures.preprocessing import Preprocessing
from ..data.sets.photo_set import PhotoSettings, find_settings
from ..errors import UserError
from ..pycaffe.image_input import Cropped, ImageInput
from ..pycaffe.io import Extents, resize_image, scale_pixels, ten_crops
from ..pycaffe.packed import pack
from .images import load_image

Image = str | np.ndarray
"""A file, or pixels: uint8 (height, width, 1 or 3), red first."""


def make_entry(
    entry: ImageInput,
    trained: Preprocessing | None,
    folder: Path,
    image_dims: Extents | None = None,
    **given: Any,
) -> FileInput | PhotoInput:
    """How images enter a net by what its files say, but for what is given. trained: the
    preprocessing of training. folder: that of the model, or of its data, which may tell how
    photographs were prepared. image_dims: (height, width) before they are cropped; others: as of
    `ImageInput.set_as`, whose errors it has."""
    files = FileInput(entry, image_dims)
    changed = any(value is not None for value in (image_dims, *given.values()))
    settings = None if changed else find_settings(folder)
    if settings and trained and entry.channels == 3:
        return PhotoInput(settings, trained, entry.extents)
    files.scale_as_trained(entry.set_as(trained or Preprocessing(), **given))
    return files


class Entry(Protocol):
    """Preprocesses an image for a net."""

    def enter(self, image: Image, oversample: bool) -> np.ndarray:
        """The input from an image: (1, or 10 crops, channels, height, width), float32."""


class FileInput(Cropped):
    """Preprocesses an image file that is not a photograph from `osucaffe data folder`."""

    def __init__(self, entry: ImageInput, image_dims: Extents | None) -> None:
        self.preprocess = entry
        self.crop_to_input(image_dims)

    def enter(self, image: Image, oversample: bool) -> np.ndarray:
        # Bytes are scaled before they become 0..1: there are fewer of them then.
        pixels = load_image(image) if isinstance(image, str) else image[:, :, :3]
        return self._cut(resize_image(pixels, self.image_dims), oversample)

    def _cut(self, image: np.ndarray, oversample: bool) -> np.ndarray:
        """The input from an image of 0..255 that has been scaled."""
        image = scale_pixels(image, color=self.preprocess.channels > 1)
        return self.cut(image, oversample=oversample)

    def scaled_crops(self, oversample: bool) -> ScaledCrops:
        """What `enter` does, for a backend that does it by itself: it does nothing to a pixel that
        is not linear, so black and each of the colours tell."""
        extents = int(self.image_dims[0]), int(self.image_dims[1])
        black, *colours = np.concatenate(([[0, 0, 0]], 255 * np.eye(3))).astype(np.float32)
        offset, *ends = (
            self._cut(np.broadcast_to(colour, (*extents, 3)), False)[0]
            for colour in (black, *colours)
        )
        mix = np.stack([(end - offset)[:, 0, 0] / 255 for end in ends], axis=1)
        parts = _parts(extents, self.crop_dims, oversample)
        return ScaledCrops(extents, np.array(parts, np.int32), mix, offset)

    def pack(self, path: str, record: np.ndarray) -> None:
        """Write a file's photo to a record for such a backend: one that is too large scaled, to
        whole levels."""
        image, extents = load_image(path), (int(self.image_dims[0]), int(self.image_dims[1]))
        if not pack(image, extents, record):
            image = np.rint(resize_image(image, extents)).clip(0, 255).astype(np.uint8)
            pack(image, extents, record)


def _parts(extents: Sequence[int], inner: Extents, oversample: bool) -> list[Choice]:
    """The middle part of an image, or ten of it."""
    if oversample:
        return ten_crops(extents, inner)
    down, right = (int(size) - int(part) for size, part in zip(extents, inner, strict=True))
    return [(down // 2, right // 2, 0)]


class PhotoInput:
    """Preprocesses a photograph for a net. extents: height and width of its input."""

    def __init__(
        self, settings: PhotoSettings, trained: Preprocessing, extents: Sequence[int] | np.ndarray
    ) -> None:
        self.settings = settings
        self._scale = np.float32(trained.scale)
        self._extents = tuple(int(extent) for extent in extents)
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

    def enter(self, image: Image, oversample: bool) -> np.ndarray:
        """The input from an image, (1 or 10, 3, height, width): its middle, or ten crops."""
        if isinstance(image, str):
            pixels = self.settings.read(image)
        else:
            colours = [2, 1, 0, 3][: image.shape[2]] if image.shape[2] > 1 else [0]
            pixels = self.settings.record(image[:, :, colours])
        record = pixels.transpose(2, 0, 1)
        parts = _parts((self.settings.size, self.settings.size), self._extents, oversample)
        entered = np.empty((len(parts), 3, *self._extents), np.float32)
        for out, part in zip(entered, parts, strict=True):
            transform_record(record, out, part, mean=self._mean, scale=self._scale)
        return entered
