"""The cache of decoded records in host memory: each is decoded once."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from ...backends.tensor import Shape


class DecodedCache:
    """A cache for the images of `count` records, (channels, height, width), and their labels.

    has: which records are cached. Memory is used as they are added. Safe to use from threads, and
    from processes that it is sent to, which share it.
    """

    def __init__(
        self, count: int, shape: Shape, *, interleaved: bool, path: str | None = None
    ) -> None:
        """interleaved: the channels come last, as decoders write them. path: of the memory of one
        that another process has created."""
        self._made_of = count, tuple(shape), interleaved
        channels, *extents = shape
        size = int(np.prod(shape))
        self.nbytes = count * (size + 8 + 1)
        # Memory of no file system, which has a path as long as this process has it open.
        self._file = os.open(path, os.O_RDWR) if path else _make_file(self.nbytes)
        memory = mmap.mmap(self._file, self.nbytes)
        self.labels = np.frombuffer(memory, np.int64, count)
        images = np.frombuffer(memory, np.uint8, count * size, count * 8)
        self.has = np.frombuffer(memory, bool, count, count * (8 + size))
        if interleaved:
            self.images = images.reshape(count, *extents, channels).transpose(0, 3, 1, 2)
        else:
            self.images = images.reshape(count, *shape)

    def __reduce__(self) -> Any:
        return _shared, (*self._made_of, f"/proc/{os.getpid()}/fd/{self._file}")

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def put(self, number: int, image: np.ndarray, label: int) -> None:
        """Cache a record, if it has the shape and type of the others."""
        if image.shape == self.images.shape[1:] and image.dtype == np.uint8:
            self.images[number] = image
            self.labels[number] = label
            self.has[number] = True


def _make_file(nbytes: int) -> int:
    """A file in memory; -1, for memory that is not shared, if there are no reader processes."""
    if not hasattr(os, "memfd_create"):
        return -1
    file = os.memfd_create("osucaffe-records")
    os.ftruncate(file, nbytes)
    return file


def _shared(count: int, shape: Shape, interleaved: bool, path: str) -> DecodedCache:
    return DecodedCache(count, shape, interleaved=interleaved, path=path)
