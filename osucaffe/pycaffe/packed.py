"""Photos as records that a backend scales: bytes, after the matrices of their resizing."""

from __future__ import annotations

import functools

import numpy as np

from .resize import row_taps


def pack(image: np.ndarray, extents: tuple[int, int], record: np.ndarray) -> bool:
    """Write a photo, uint8 (height, width, 1 or 3), to a record of bytes, with what `resize_image`
    multiplies it with (photos.cu has the form). False if it does not fit."""
    height, width, _ = image.shape
    head = _head(height, width, extents)
    end = len(head) + 3 * height * width
    if end > len(record):
        return False
    record[: len(head)] = head
    record[len(head) : end].reshape(height, width, 3)[...] = image
    return True


def packed_bytes(height: int, width: int, extents: tuple[int, int]) -> int:
    """The bytes that `pack` needs for a photo of this size."""
    return len(_head(height, width, extents)) + 3 * height * width


@functools.lru_cache(maxsize=256)
def _head(height: int, width: int, extents: tuple[int, int]) -> np.ndarray:
    """What is before the pixels. Photos are mostly of few sizes."""
    axes = [row_taps(old, new) for old, new in zip((height, width), extents, strict=True)]
    size = np.array([height, width, *(weights.shape[1] for _, weights in axes)], np.int32)
    parts = [size, *(part for axis in axes for part in axis)]
    return np.frombuffer(b"".join(part.tobytes() for part in parts), np.uint8)
