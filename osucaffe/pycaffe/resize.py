"""Owns the resizing of arrays as pycaffe's libraries do it: scikit-image's, and SciPy's zoom.

An axis is resized by a matrix, so that nothing but NumPy is needed; only the band of it that is not
zero is held.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

Bands = list[tuple[int, np.ndarray]]
_ROWS = 16
_WIDTH = 4.0
"""Of a Gaussian, in standard deviations, on either side."""


def resized(image: np.ndarray, extents: Sequence[int], order: int) -> np.ndarray:
    """An image (height, width, channels) as scikit-image's `resize` gives it.

    Pixel i covers i..i+1, and the image goes on as its mirror image. Where any axis shrinks, all
    are smoothed first, by a Gaussian as wide as they shrink. order: 0 nearest, 1 linear.
    """
    smooth = any(new < old for new, old in zip(extents, image.shape, strict=False))
    down, across = (
        _resizing(old, new, order, smooth) for old, new in zip(image.shape, extents, strict=False)
    )
    return _applied(image, down, across)


@functools.lru_cache(maxsize=64)
def _resizing(old: int, new: int, order: int, smooth: bool) -> Bands:
    """The matrix (new, old) of `resized`: images are mostly of few sizes, and it takes long."""
    matrix = _interpolation((np.arange(new) + 0.5) * (old / new) - 0.5, old, order)
    return _bands(matrix @ _gaussian(old, (old / new - 1) / 2) if smooth else matrix)


def zoomed(image: np.ndarray, extents: Sequence[int], order: int) -> np.ndarray:
    """The same as SciPy's `zoom` gives it: corners on corners, nothing smoothed."""
    matrices = []
    for old, new in zip(image.shape, extents, strict=False):
        places = np.arange(new) * ((old - 1) / max(new - 1, 1))
        matrices.append(_bands(_interpolation(places, old, order)))
    return _applied(image, *matrices)


def _bands(matrix: np.ndarray) -> Bands:
    """A matrix that is zero far from its diagonal, in pieces of a few rows: where these columns
    that are not zero begin, and those."""
    bands = []
    for rows in (matrix[start : start + _ROWS] for start in range(0, len(matrix), _ROWS)):
        used = np.flatnonzero(rows.any(axis=0))
        bands.append((int(used[0]), np.ascontiguousarray(rows[:, used[0] : used[-1] + 1])))
    return bands


def _product(bands: Bands, image: np.ndarray) -> np.ndarray:
    """The matrix times the image's rows."""
    flat = image.reshape(len(image), -1)
    parts = [rows @ flat[start : start + rows.shape[1]] for start, rows in bands]
    return np.concatenate(parts).reshape(-1, *image.shape[1:])


def _applied(image: np.ndarray, down: Bands, across: Bands) -> np.ndarray:
    columns = _product(down, image.astype(np.float64)).transpose(1, 0, 2)
    return _product(across, np.ascontiguousarray(columns)).transpose(1, 0, 2)


def _mirrored(places: np.ndarray, extent: int) -> np.ndarray:
    """Places beyond the ends, reflected about the centres of the first and the last pixel."""
    period = max(2 * (extent - 1), 1)
    inside = places % period
    return np.minimum(inside, period - inside) if extent > 1 else np.zeros_like(places)


def _interpolation(places: np.ndarray, extent: int, order: int) -> np.ndarray:
    """The matrix (places, extent) of values at places between pixels."""
    matrix = np.zeros((len(places), extent))
    rows = np.arange(len(places))
    if order == 0:
        matrix[rows, _mirrored(np.floor(places + 0.5).astype(int), extent)] = 1
        return matrix
    lower = np.floor(places).astype(int)
    weight = places - lower
    np.add.at(matrix, (rows, _mirrored(lower, extent)), 1 - weight)
    np.add.at(matrix, (rows, _mirrored(lower + 1, extent)), weight)
    return matrix


def _gaussian(extent: int, deviation: float) -> np.ndarray:
    """The matrix (extent, extent) of the smoothing."""
    if deviation <= 0:
        return np.eye(extent)
    radius = int(_WIDTH * deviation + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / deviation) ** 2)
    matrix = np.zeros((extent, extent))
    rows = np.arange(extent)[:, None]
    places = _mirrored(rows + offsets, extent)
    np.add.at(matrix, (rows, places), np.broadcast_to(weights / weights.sum(), places.shape))
    return matrix
