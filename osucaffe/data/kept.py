"""Owns decoded records that stay in the host's memory: each is decoded once."""

from __future__ import annotations

import numpy as np

from ..backends.tensor import Shape


class Kept:
    """Room for the images of `count` records, (channels, height, width), and their labels.

    has: which records are there. The memory is taken as they come. Safe to use from threads that
    put the same records.
    """

    def __init__(self, count: int, shape: Shape, *, interleaved: bool) -> None:
        """interleaved: the channels lie last, as decoders write them."""
        channels, *extents = shape
        if interleaved:
            self.images = np.empty((count, *extents, channels), np.uint8).transpose(0, 3, 1, 2)
        else:
            self.images = np.empty((count, *shape), np.uint8)
        self.labels = np.empty(count, np.int64)
        self.has = np.zeros(count, bool)

    @property
    def nbytes(self) -> int:
        """What they take when all are there."""
        return self.images.nbytes + self.labels.nbytes + self.has.nbytes

    def put(self, number: int, image: np.ndarray, label: int) -> None:
        """Keep a record, if it has the shape and type of the others."""
        if image.shape == self.images.shape[1:] and image.dtype == np.uint8:
            self.images[number] = image
            self.labels[number] = label
            self.has[number] = True
