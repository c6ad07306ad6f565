"""Owns decoded records that stay in the host's memory: each is decoded once."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

from ..backends.tensor import Shape


class Kept:
    """Room for the images of `count` records, (channels, height, width), and their labels.

    has: which records are there. The memory is taken as they come, and shared with processes that
    are forked: a copy in another process begins empty. Safe to use from threads and processes that
    put the same records.
    """

    def __init__(self, count: int, shape: Shape) -> None:
        self._given = count, shape
        channels, *extents = shape
        # The channels lie last, as decoders write them.
        self.images = _shared((count, *extents, channels), np.uint8).transpose(0, 3, 1, 2)
        self.labels = _shared((count,), np.int64)
        self.has = _shared((count,), np.bool_)

    def __reduce__(self) -> Any:
        return Kept, self._given

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


def _shared(shape: Shape, dtype: type[np.generic]) -> np.ndarray:
    """Zeros that forked processes share."""
    count = math.prod(shape)
    memory = mmap.mmap(-1, count * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, count).reshape(shape)
