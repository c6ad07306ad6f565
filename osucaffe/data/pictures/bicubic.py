"""Shrinking and enlarging images by an integer factor with imresize's bicubic kernel.

The kernel is Keys' cubic convolution with a = -1/2 (IEEE Transactions on ASSP 29(6), 1981). Where
it shrinks it is made `scale` times as wide, so that all pixels of the large image count: the way in
which MATLAB's imresize made the small images of DIV2K and of other sets for super-resolution.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .resample import Taps, cubic

_KEYS = -0.5


def shrink(image: np.ndarray, scale: int, box: tuple[slice, slice] | None = None) -> np.ndarray:
    """An image (..., height, width) at 1 / scale of its size, which is rounded down.

    box: rows and columns of the result to compute (default: all); only the pixels that these need
    are read. The image is mirrored at its edges. Bytes are rounded once, halves up.
    """
    # Pixels beyond the last full pixel of the result are ignored.
    small = [extent // scale for extent in image.shape[-2:]]
    rows, columns = box or (slice(0, small[0]), slice(0, small[1]))
    part = image[..., _sources(rows, small[0], scale), :][..., _sources(columns, small[1], scale)]
    down, across = (_weights(part.stop - part.start, scale) for part in (rows, columns))
    values: np.ndarray = down @ part.astype(np.float64) @ across.T
    if image.dtype == np.uint8:
        return np.floor(values.clip(0, 255) + 0.5).astype(np.uint8)
    return values.astype(image.dtype)


def _sources(target: slice, count: int, scale: int) -> slice | np.ndarray:
    """The large pixels that contribute to `count` targets, including two more on either side."""
    start, stop, extent = ((at * scale) for at in (target.start - 2, target.stop + 2, count))
    if start >= 0 and stop <= extent:
        return slice(start, stop)
    beyond = np.arange(start, stop) % (2 * extent)
    return np.minimum(beyond, 2 * extent - 1 - beyond)


@lru_cache(maxsize=64)
def _weights(count: int, scale: int) -> np.ndarray:
    """The matrix (count, sources) by which as many pixels in a row are made of `_sources`."""
    centres = (np.arange(count) + 2.5) * scale - 0.5
    x = np.abs(np.arange((count + 4) * scale) - centres[:, None]) / scale
    weights = cubic(x, _KEYS)
    return weights / weights.sum(axis=1, keepdims=True)


def enlarge(image: np.ndarray, scale: int) -> np.ndarray:
    """An image (..., height, width) `scale` times as large, as imresize makes it.

    The kernel keeps its width here: each pixel is made of 4 x 4, beyond the edges those of the
    mirror image. Bytes are rounded once, halves up; other types become float32.
    """
    values = image.astype(np.float32)
    for axis in (-2, -1):
        taps, weights = _taps(image.shape[axis], scale)
        shape = [-1 if dim == axis else 1 for dim in (-2, -1)]
        total: np.ndarray = np.zeros((), np.float32)
        for tap, weight in zip(taps, weights, strict=True):
            total = total + np.take(values, tap, axis) * weight.reshape(shape)
        values = total
    if image.dtype == np.uint8:
        return np.floor(values.clip(0, 255) + 0.5).astype(np.uint8)
    return values


@lru_cache(maxsize=64)
def _taps(count: int, scale: int) -> Taps:
    """Places and weights, both (4, count * scale), of the pixels in a row of `count` that those of
    a row `scale` times as long are made of."""
    centres = (np.arange(count * scale) + 0.5) / scale - 0.5
    taps = np.floor(centres).astype(int) + np.arange(-1, 3)[:, None]
    weights = cubic(np.abs(taps - centres), _KEYS).astype(np.float32)
    beyond = taps % (2 * count)
    return np.minimum(beyond, 2 * count - 1 - beyond), weights
