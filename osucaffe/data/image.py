"""Owns image files: reading one as pixels in Caffe's order, and bilinear resizing as OpenCV's."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from ..errors import UserError
from .datum import decode_image

_ONE = 1 << 11
"""The weight 1 in fixed point: OpenCV's, whose resizing Caffe's tools use."""


def read_image(path: str, colour: bool | None = True, size: tuple[int, int] | None = None
               ) -> np.ndarray:  # fmt: skip
    """An image file as uint8 (height, width, channels), blue first.

    colour: 3 channels (True), 1 (False), or what it has (None). size: (height, width) to resize
    to. Raises UserError that names a file that is missing, or no image.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read image {path}: {error.strerror}") from error
    try:
        image = decode_image(memoryview(content), colour)
    except (ValueError, UserError) as error:
        raise UserError(f"cannot read image {path}: {error}") from error
    return image if size is None else resize(image, *size)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """A uint8 image (height, width, channels) at another size.

    Each pixel is the bilinear mean of the four nearest to its centre; shrinking skips the others.
    """
    if image.shape[:2] == (height, width):
        return image
    near, far, weight = _taps(image.shape[1], width)
    columns = image[:, near] * (_ONE - weight)[:, None] + image[:, far] * weight[:, None]
    columns >>= 4
    near, far, weight = _taps(image.shape[0], height)
    weight = weight[:, None, None]
    # The rounding is OpenCV's: 4 bits go before the second pass, 16 and 2 after its products.
    upper, lower = columns[near] * (_ONE - weight), columns[far] * weight
    return (((upper >> 16) + (lower >> 16) + 2) >> 2).astype(np.uint8)


@lru_cache(maxsize=64)
def _taps(source: int, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each target pixel: its two neighbours, and the second one's weight times 2^11."""
    centres = ((np.arange(target) + 0.5) * (source / target) - 0.5).astype(np.float32)
    floor = np.floor(centres)
    weight = np.rint((centres - floor) * _ONE).astype(np.int32)
    near = floor.astype(np.int64)
    return near.clip(0, source - 1), (near + 1).clip(0, source - 1), weight
