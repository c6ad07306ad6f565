"""Owns images at another size by any of OpenCV's interpolations, as its functions weigh pixels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .image import resize

_CUBIC = -0.75
"""OpenCV's coefficient of the cubic convolution."""
_LOBES = 4


def resample(image: np.ndarray, height: int, width: int, mode: str) -> np.ndarray:
    """A uint8 image (height, width, channels) at another size.

    mode: LINEAR, AREA (means of the pixels that each covers), NEAREST, CUBIC or LANCZOS4. None but
    AREA looks at more pixels when it shrinks.
    """
    if image.shape[:2] == (height, width):
        return image
    if mode == "LINEAR":
        return resize(image, height, width)
    if mode == "AREA" and (height > image.shape[0] or width > image.shape[1]):
        mode = "ENLARGED"
    down, across = _weights(image.shape[0], height, mode), _weights(image.shape[1], width, mode)
    rows = np.tensordot(down, image.astype(np.float32), axes=(1, 0))
    pixels = np.tensordot(across, rows, axes=(1, 1)).transpose(1, 0, 2)
    return np.rint(pixels).clip(0, 255).astype(np.uint8)


@lru_cache(maxsize=256)
def _weights(source: int, target: int, mode: str) -> np.ndarray:
    """The matrix (target, source) by which pixels in a row are made of others."""
    scale = source / target
    places = np.arange(target)
    if mode == "NEAREST":
        return _taps(source, [np.floor(places * scale)], [np.ones(target)])
    if mode == "AREA":
        low, pixels = places[:, None] * scale, np.arange(source)
        shared = np.minimum(low + scale, pixels + 1) - np.maximum(low, pixels)
        return (shared.clip(0) / scale).astype(np.float32)
    if mode == "ENLARGED":
        first = np.floor(places * scale)
        beyond = (places + 1) - (first + 1) / scale
        share = np.where(beyond <= 0, 0, beyond - np.floor(beyond))
        return _taps(source, [first, first + 1], [1 - share, share])
    centres = (places + 0.5) * scale - 0.5
    first = np.floor(centres)
    reach, kernel = (2, _cubic) if mode == "CUBIC" else (_LOBES, _lanczos)
    near = [first + tap for tap in range(1 - reach, reach + 1)]
    weights = [kernel(np.abs(centres - each)) for each in near]
    total = sum(weights)
    return _taps(source, near, [each / total for each in weights])


def _taps(source: int, places: list[np.ndarray], weights: list[np.ndarray]) -> np.ndarray:
    """The matrix of some pixels for each place; those beyond an edge are the edge's."""
    matrix = np.zeros((len(places[0]), source), np.float32)
    for place, weight in zip(places, weights, strict=True):
        columns = place.clip(0, source - 1).astype(int)
        np.add.at(matrix, (np.arange(len(matrix)), columns), weight)
    return matrix


def _cubic(x: np.ndarray) -> np.ndarray:
    near = ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1
    far = ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _lanczos(x: np.ndarray) -> np.ndarray:
    weights: np.ndarray = np.where(x < _LOBES, np.sinc(x) * np.sinc(x / _LOBES), 0)
    return weights
