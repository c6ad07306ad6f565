"""Owns decoded records that stay in the host's memory: each is decoded once."""

from __future__ import annotations

import math
import mmap
from functools import partial
from typing import Any

import numpy as np

from ..backends.tensor import Shape


class Kept:
    """Room for the images of `count` records, (channels, height, width), and their labels.

    has: which records are there. The memory is taken as they come. Safe to use from threads that
    put the same records, and from processes that were forked behind this.
    """

    def __init__(self, count: int, shape: Shape, *, interleaved: bool) -> None:
        """interleaved: the channels lie last, as decoders write them."""
        channels, *extents = shape
        if interleaved:
            self.images = _shared((count, *extents, channels), "uint8").transpose(0, 3, 1, 2)
        else:
            self.images = _shared((count, *shape), "uint8")
        self.labels = _shared((count,), "int64")
        self.has = _shared((count,), "bool")
        self._form = count, shape, interleaved

    def __reduce__(self) -> Any:
        """A copy for another process has room of its own, which that one's forks share."""
        count, shape, interleaved = self._form
        return partial(Kept, interleaved=interleaved), (count, shape)

    def put(self, number: int, image: np.ndarray, label: int) -> None:
        """Keep a record, if it has the shape and type of the others."""
        if image.shape == self.images.shape[1:] and image.dtype == np.uint8:
            self.images[number] = image
            self.labels[number] = label
            self.has[number] = True


def _shared(shape: Shape, dtype: str) -> np.ndarray:
    """Zeros, which forks of this process share."""
    size = math.prod(shape)
    memory = mmap.mmap(-1, max(1, size * np.dtype(dtype).itemsize))
    return np.frombuffer(memory, dtype, size).reshape(shape)
