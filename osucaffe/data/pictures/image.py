"""Image files: reading one as pixels in Caffe's order, and OpenCV's bilinear resizing."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...errors import UserError
from ...files import read_file
from ..databases.image_file import decode_image

_ONE = 1 << 11
"""The weight 1 in fixed point: OpenCV's, whose resizing Caffe's tools use."""


def whole(value: float) -> int:
    """The nearest integer; halves are rounded away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def read_image(path: str, colour: bool | None = True, size: tuple[int, int] | None = None
               ) -> np.ndarray:  # fmt: skip
    """An image file as uint8 (height, width, channels), upright by its EXIF, blue first.

    colour: 3 channels (True), 1 (False), or what it has (None). size: (height, width) to resize
    to. Raises UserError that names a file that is missing, or no image.
    """
    return decode_content(path, read_content(path), colour, size)


def read_content(path: str | Path) -> bytes:
    """An image file as it is. UserError as `read_image`."""
    try:
        return read_file(path)
    except OSError as error:
        raise UserError(f"cannot read image {path}: {error.strerror}") from error


def decode_content(
    path: str | Path,
    content: bytes,
    colour: bool | None = None,
    size: tuple[int, int] | None = None,
    *,
    red_first: bool = False,
) -> np.ndarray:
    """The result of `read_image` for a file with this content, or with red first."""
    try:
        image = decode_image(memoryview(content), colour, red_first=red_first)
    except (ValueError, UserError) as error:
        raise UserError(f"cannot read image {path}: {error}") from error
    return image if size is None else resize(image, *size)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """A uint8 image (height, width, channels) at another size.

    Each pixel is the bilinear mean of the four nearest to its centre; shrinking skips the others.
    """
    if image.shape[:2] == (height, width):
        return image
    rows, extent, channels = image.shape
    flat = image.reshape(rows, -1)
    above, below, share = _taps(rows, height)
    used, indices = np.unique(np.concatenate((above, below)), return_inverse=True)
    if len(used) < rows:  # rows in between are not used
        flat, above, below = flat[used], indices[:height], indices[height:]
    near, far, (first, second) = _columns(extent, width, channels)
    # In NumPy, a few passes over contiguous rows are fastest: an axis of channels is slow.
    columns = np.multiply(flat.take(near, axis=1), first, dtype=np.int32)
    columns += np.multiply(flat.take(far, axis=1), second, dtype=np.int32)
    columns >>= 4
    # The rounding is OpenCV's: 4 bits go before the second pass, 16 and 2 after its products.
    total = _weighed(columns.take(above, axis=0), _ONE - share)
    total += _weighed(columns.take(below, axis=0), share)
    total += 2
    total >>= 2
    return total.astype(np.uint8).reshape(height, width, channels)


def _weighed(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
    rows *= weight[:, None]
    rows >>= 16
    return rows


@lru_cache(maxsize=64)
def _taps(source: int, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each target pixel: its two neighbours, and the second one's weight times 2^11."""
    centres = ((np.arange(target) + 0.5) * (source / target) - 0.5).astype(np.float32)
    floor = np.floor(centres)
    weight = np.rint((centres - floor) * _ONE).astype(np.int32)
    near = floor.astype(np.int64)
    return near.clip(0, source - 1), (near + 1).clip(0, source - 1), weight


@lru_cache(maxsize=64)
def _columns(source: int, target: int, channels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same for each channel of the target's pixels, in a row of bytes; and both weights."""
    near, far, weight = _taps(source, target)
    offsets = np.arange(channels)
    near, far = ((pixel[:, None] * channels + offsets).ravel() for pixel in (near, far))
    return near, far, np.stack([_ONE - weight, weight]).repeat(channels, axis=1)
