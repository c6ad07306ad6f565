"""Owns shrinking images by a whole number with an antialiased bicubic kernel, as imresize does.

The kernel is Keys' cubic convolution with a = -1/2 (IEEE Transactions on ASSP 29(6), 1981), made
`scale` times as wide, so that all pixels of the large image count: the way in which MATLAB's
imresize made the small images of DIV2K and of other sets for super-resolution.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np


def shrink(image: np.ndarray, scale: int, box: tuple[slice, slice] | None = None) -> np.ndarray:
    """An image (..., height, width) at 1 / scale of its size, which is rounded down.

    box: rows and columns of the result to compute (default: all); only the pixels that these need
    are read. At the edges the image goes on as its mirror image. Bytes are rounded once, halves up.
    """
    # What lies behind the last whole pixel of the result does not count.
    small = [extent // scale for extent in image.shape[-2:]]
    rows, columns = box or (slice(0, small[0]), slice(0, small[1]))
    part = image[..., _sources(rows, small[0], scale), :][..., _sources(columns, small[1], scale)]
    down, across = (_weights(each.stop - each.start, scale) for each in (rows, columns))
    values: np.ndarray = down @ part.astype(np.float64) @ across.T
    if image.dtype == np.uint8:
        return np.floor(values.clip(0, 255) + 0.5).astype(np.uint8)
    return values.astype(image.dtype)


def _sources(wanted: slice, count: int, scale: int) -> slice | np.ndarray:
    """The large pixels that go into the wanted ones of `count`: two of these to either side too."""
    start, stop, extent = ((at * scale) for at in (wanted.start - 2, wanted.stop + 2, count))
    if start >= 0 and stop <= extent:
        return slice(start, stop)
    beyond = np.arange(start, stop) % (2 * extent)
    return np.minimum(beyond, 2 * extent - 1 - beyond)


@lru_cache(maxsize=64)
def _weights(count: int, scale: int) -> np.ndarray:
    """The matrix (count, sources) by which as many pixels in a row are made of `_sources`."""
    centres = (np.arange(count) + 2.5) * scale - 0.5
    x = np.abs(np.arange((count + 4) * scale) - centres[:, None]) / scale
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    weights = np.where(x <= 1, near, np.where(x < 2, far, 0))
    return weights / weights.sum(axis=1, keepdims=True)
