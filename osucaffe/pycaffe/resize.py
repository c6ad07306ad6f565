"""The resizing of arrays as in pycaffe's libraries: scikit-image's resize, and SciPy's zoom.

An axis is resized by a matrix, so that only NumPy is needed; only its non-zero band is
stored.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Taps = tuple[np.ndarray, np.ndarray]
"""For each value the pixels (values, taps) that make it, and their weights."""
_ROWS = 16
_WIDTH = 4.0
"""Of a Gaussian, in standard deviations, on either side."""


class Band(NamedTuple):
    """Some rows of a matrix: which, the columns in which they are not zero, and what is there."""

    rows: slice
    columns: slice
    weights: np.ndarray


def resized(image: np.ndarray, extents: Sequence[int], order: int) -> np.ndarray:
    """An image (height, width, channels) as scikit-image's `resize` gives it.

    Pixel i covers i..i+1, and the image goes on as its mirror image. Where any axis shrinks, all
    are smoothed first, by a Gaussian as wide as they shrink. order: 0 nearest, 1 linear.
    """
    smooth = any(new < old for new, old in zip(extents, image.shape, strict=False))
    sizes = zip(image.shape, extents, strict=False)
    return _applied(image, *(_Resizing(old, new, order, smooth) for old, new in sizes))


class _Resizing(NamedTuple):
    """An axis of `resized`, the matrix of which is (new, old)."""

    old: int
    new: int
    order: int
    smooth: bool

    def matrix(self) -> np.ndarray:
        old, scale = self.old, self.old / self.new
        taps = _interpolation((np.arange(self.new) + 0.5) * scale - 0.5, old, self.order)
        return _matrix(_smoothed(taps, old, (scale - 1) / 2) if self.smooth else taps, old)


class _Zooming(NamedTuple):
    """An axis of `zoomed`."""

    old: int
    new: int
    order: int

    def matrix(self) -> np.ndarray:
        positions = np.arange(self.new) * ((self.old - 1) / max(self.new - 1, 1))
        return _matrix(_interpolation(positions, self.old, self.order), self.old)


def row_taps(old: int, new: int) -> Taps:
    """The matrix of an axis of `resized` (order 1): for each value the first of the neighbouring
    pixels that make it, int32 (new,), and the weights of these, float32 (new, taps)."""
    matrix = _Resizing(old, new, order=1, smooth=True).matrix() if new != old else np.eye(old)
    used = matrix != 0
    first, last = used.argmax(axis=1), old - 1 - used[:, ::-1].argmax(axis=1)
    count = int((last - first).max()) + 1
    first = np.minimum(first, old - count)
    weights = np.take_along_axis(matrix, first[:, None] + np.arange(count), axis=1)
    return first.astype(np.int32), weights.astype(np.float32)


def zoomed(image: np.ndarray, extents: Sequence[int], order: int) -> np.ndarray:
    """The same as SciPy's `zoom` gives it: corners on corners, nothing smoothed."""
    sizes = zip(image.shape, extents, strict=False)
    return _applied(image, *(_Zooming(old, new, order) for old, new in sizes))


@functools.lru_cache(maxsize=512)
def _bands(axis: _Resizing | _Zooming, dtype: np.dtype) -> list[Band]:
    """The matrix of an axis, which is zero far from its diagonal, in pieces of a few rows. Images
    are mostly of few sizes, and it takes long."""
    bands, matrix = [], axis.matrix().astype(dtype)
    for start in range(0, len(matrix), _ROWS):
        rows = matrix[start : start + _ROWS]
        used = np.flatnonzero(rows.any(axis=0))
        inside = slice(int(used[0]), int(used[-1]) + 1)
        bands.append(
            Band(slice(start, start + _ROWS), inside, np.ascontiguousarray(rows[:, inside]))
        )
    return bands


def _applied(
    image: np.ndarray, down: _Resizing | _Zooming, across: _Resizing | _Zooming
) -> np.ndarray:
    """An image of other extents, in memory channel by channel, in single precision if it was."""
    height, width, channels = image.shape
    dtype = np.result_type(image, np.float32)
    flat = image.reshape(height, -1)
    rows = np.empty((down.new, flat.shape[1]), dtype)
    for target, source, weights in _bands(down, dtype):
        np.matmul(weights, flat[source].astype(dtype, copy=False), out=rows[target])
    planes = rows.reshape(-1, width, channels).transpose(2, 0, 1).reshape(-1, width)
    result = np.empty((len(planes), across.new), dtype)
    for target, source, weights in _bands(across, dtype):
        np.matmul(planes[:, source], weights.T, out=result[:, target])
    return result.reshape(channels, down.new, across.new).transpose(1, 2, 0)


def _mirrored(positions: np.ndarray, extent: int) -> np.ndarray:
    """Places beyond the ends, reflected about the centres of the first and the last pixel."""
    period = max(2 * (extent - 1), 1)
    inside = positions % period
    return np.minimum(inside, period - inside) if extent > 1 else np.zeros_like(positions)


def _interpolation(positions: np.ndarray, extent: int, order: int) -> Taps:
    """What makes values at places between pixels."""
    if order == 0:
        nearest = _mirrored(np.floor(positions + 0.5).astype(int), extent)
        return nearest[:, None], np.ones((len(positions), 1))
    lower = np.floor(positions).astype(int)
    weight = positions - lower
    pixels = _mirrored(np.stack([lower, lower + 1], axis=1), extent)
    return pixels, np.stack([1 - weight, weight], axis=1)


def _smoothed(taps: Taps, extent: int, deviation: float) -> Taps:
    """The same of pixels that a Gaussian has smoothed."""
    if deviation <= 0:
        return taps
    pixels, weights = taps
    radius = int(_WIDTH * deviation + 0.5)
    offsets = np.arange(-radius, radius + 1)
    shares = np.exp(-0.5 * (offsets / deviation) ** 2)
    pixels = _mirrored(pixels[:, :, None] + offsets, extent)
    weights = weights[:, :, None] * (shares / shares.sum())
    return pixels.reshape(len(pixels), -1), weights.reshape(len(pixels), -1)


def _matrix(taps: Taps, extent: int) -> np.ndarray:
    """The matrix (values, extent) of what makes values of pixels."""
    pixels, weights = taps
    matrix = np.zeros((len(pixels), extent))
    np.add.at(matrix, (np.arange(len(pixels))[:, None], pixels), weights)
    return matrix
