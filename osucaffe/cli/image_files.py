"""Owns the stream of image files that `osucaffe classify` runs a net on: read, decoded and scaled
by workers, some batches ahead of the net."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ..data.pipeline import Pipeline, Threads
from ..data.processes import Processes, can_be_processes
from ..pycaffe.image_input import Cropped, ImageInput
from ..pycaffe.io import Extents, resize_image, scale_pixels
from .photo_input import load_upright

_DEPTH = 4
_MANY = 256
"""Images from which on processes are worth the time that they take to start."""


class Entry(Protocol):
    """The way of an image file into a net."""

    def enter(self, path: str, oversample: bool) -> np.ndarray:
        """What enters of a file: (1, or 10 crops, channels, height, width), float32."""


class FileInput(Cropped):
    """The way of an image file that is no photograph as `osucaffe data folder` prepares them."""

    def __init__(self, entry: ImageInput, image_dims: Extents | None) -> None:
        self.preprocess = entry
        self.crop_to_input(image_dims)

    def enter(self, path: str, oversample: bool) -> np.ndarray:
        # Bytes are scaled before they become 0..1: there are fewer of them then.
        image = resize_image(load_upright(path), self.image_dims)
        image = scale_pixels(image, color=self.preprocess.channels > 1)
        return self.cut(image, oversample=oversample)


class ImageFiles:
    """Image files one after the other; behind the last one nothing is written."""

    def __init__(self, paths: Sequence[str], entry: Entry, *, oversample: bool) -> None:
        self._paths, self._entry, self._oversample = paths, entry, oversample

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Write what enters of the files from this position on to an array (N, crops, channels,
        height, width). Raises UserError that names a file that cannot be read."""
        (data,) = arrays
        paths = self._paths[position : position + len(data)]
        for place, path in zip(data, paths, strict=False):
            place[...] = self._entry.enter(path, self._oversample)

    def stream(self, shape: tuple[int, ...], readers: int) -> Pipeline:
        """Batches of this shape, (images, crops, channels, height, width), made by so many."""
        depth = min(_DEPTH, -(-len(self._paths) // shape[0]))
        processes = len(self._paths) >= _MANY and can_be_processes()
        return Pipeline(
            self.fill,
            [shape],
            depth=depth,
            threads=readers,
            workers=Processes if processes else Threads,
        )
