"""Resizing by any of OpenCV's interpolations, with the same weights of pixels."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from .image import resize

_CUBIC = -0.75
"""OpenCV's coefficient of the cubic convolution."""
_LOBES = 4


def resample(image: np.ndarray, height: int, width: int, mode: str) -> np.ndarray:
    """A uint8 image (height, width, channels) at another size.

    mode: LINEAR, AREA (means of the pixels that each covers), NEAREST, CUBIC or LANCZOS4. Only
    AREA uses more pixels when it shrinks.
    """
    if image.shape[:2] == (height, width):
        return image
    if mode == "LINEAR":
        return resize(image, height, width)
    if mode == "AREA" and (height > image.shape[0] or width > image.shape[1]):
        mode = "ENLARGED"
    if mode == "NEAREST":
        down, across = _taps(image.shape[0], height, mode), _taps(image.shape[1], width, mode)
        nearest: np.ndarray = image[down[0][0]][:, across[0][0]]
        return nearest
    return np.rint(interpolate(image, height, width, mode)).clip(0, 255).astype(np.uint8)


def interpolate(image: np.ndarray, height: int, width: int, mode: str) -> np.ndarray:
    """Any image (height, width, channels) at another size, as float32: neither rounded nor clipped.

    mode: CUBIC or LANCZOS4, or AREA and ENLARGED, which is AREA's way to larger sizes.
    """
    down, across = _taps(image.shape[0], height, mode), _taps(image.shape[1], width, mode)
    rows = _gather(image.reshape(len(image), -1), down).reshape(height, *image.shape[1:])
    turned = np.ascontiguousarray(rows.transpose(1, 0, 2)).reshape(image.shape[1], -1)
    return _gather(turned, across).reshape(width, height, -1).transpose(1, 0, 2)


Taps = tuple[np.ndarray, np.ndarray]
"""Indices (T, target) and weights (T, target) of the source pixels of each target in a row."""


def _gather(rows: np.ndarray, taps: Taps) -> np.ndarray:
    """The weighted sums of rows (source, ...), as float32."""
    total: np.ndarray | None = None
    for indices, weight in zip(*taps, strict=True):
        part = rows[indices].astype(np.float32)
        part *= weight[:, None]
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


@lru_cache(maxsize=256)
def _taps(source: int, target: int, mode: str) -> Taps:
    scale = source / target
    outputs = np.arange(target)
    if mode == "NEAREST":
        return _within(source, [np.floor(outputs * scale)], [np.ones(target)])
    if mode == "AREA":
        low = outputs * scale
        near = [np.floor(low) + offset for offset in range(math.ceil(scale) + 1)]
        shared = [np.minimum(low + scale, pixel + 1) - np.maximum(low, pixel) for pixel in near]
        return _within(source, near, [weight.clip(0) / scale for weight in shared])
    if mode == "ENLARGED":
        first = np.floor(outputs * scale)
        beyond = (outputs + 1) - (first + 1) / scale
        share = np.where(beyond <= 0, 0, beyond - np.floor(beyond))
        return _within(source, [first, first + 1], [1 - share, share])
    centres = (outputs + 0.5) * scale - 0.5
    first = np.floor(centres)
    reach, kernel = (2, cubic) if mode == "CUBIC" else (_LOBES, _lanczos)
    near = [first + tap for tap in range(1 - reach, reach + 1)]
    weights = [kernel(np.abs(centres - pixel)) for pixel in near]
    total = sum(weights)
    return _within(source, near, [weight / total for weight in weights])


def _within(source: int, pixels: list[np.ndarray], weights: list[np.ndarray]) -> Taps:
    """The taps, clamped to the edges."""
    return np.stack(pixels).clip(0, source - 1).astype(int), np.stack(weights).astype(np.float32)


def cubic(x: np.ndarray, a: float = _CUBIC) -> np.ndarray:
    """Keys' weight of a pixel at the distance x >= 0, in pixels, with his coefficient a."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.where(x < _LOBES, np.sinc(x) * np.sinc(x / _LOBES), 0)
    return weights
