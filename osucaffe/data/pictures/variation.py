"""Augmentation_param: images turned, zoomed, of other colours and with an erased part, drawn
again for each in training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_AREA, _ASPECT = (0.02, 0.33), (0.3, 3.3)
"""Of an erased rectangle: its share of the image, and its sides' (Random Erasing, Zhong et al.)."""
_LUMA = np.array([0.114, 0.587, 0.299], np.float32)
"""Of blue, green and red."""


def vary(image: np.ndarray, param: Any, draw: int) -> np.ndarray:
    """An image of the same shape, uint8 (1 or 3 channels, height, width), by an
    AugmentationParameter and 64 random bits. What it does not fill has the image's mean colour."""
    generator = np.random.default_rng(draw)
    mean = image.mean(axis=(1, 2))
    angle, zoom = generator.uniform(-1, 1, 2) * (math.radians(param.rotation), param.zoom)
    if angle or zoom:
        image = _turned(image, angle, (1 + param.zoom) ** (zoom / (param.zoom or 1)), mean)
    if param.colour:
        image = _coloured(image, *generator.uniform(1 - param.colour, 1 + param.colour, 3))
    if generator.random() < param.erasing:
        image = image.copy()
        area, aspect = generator.uniform(*_AREA), math.exp(generator.uniform(*np.log(_ASPECT)))
        extents = np.array(image.shape[1:])
        sides = np.sqrt(area * np.array([aspect, 1 / aspect])) * extents
        height, width = sides.round().astype(int).clip(1, extents).tolist()
        top, left = generator.integers(extents - (height, width) + 1).tolist()
        image[:, top : top + height, left : left + width] = mean[:, None, None]
    return image


def _turned(image: np.ndarray, angle: float, zoom: float, mean: np.ndarray) -> np.ndarray:
    """Turned around its middle, and enlarged; pixels are bilinear means."""
    from PIL import Image

    bands = Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    height, width = image.shape[1:]
    across, down = (width - 1) / 2, (height - 1) / 2
    cos, sin = math.cos(angle) / zoom, math.sin(angle) / zoom
    # Pillow wants where each pixel comes from, in pixels whose middles are at 0.5.
    middle = across + 0.5, down + 0.5
    matrix = (
        *(cos, sin, middle[0] - cos * middle[0] - sin * middle[1]),
        *(-sin, cos, middle[1] + sin * middle[0] - cos * middle[1]),
    )
    fill = tuple(mean.astype(int).tolist())
    turned = bands.transform(
        (width, height),
        Image.Transform.AFFINE,
        matrix,
        Image.Resampling.BILINEAR,
        fillcolor=fill if len(fill) > 1 else fill[0],
    )
    array = np.asarray(turned)
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _coloured(
    image: np.ndarray, brightness: float, contrast: float, saturation: float
) -> np.ndarray:
    """With these factors of its values, their distances to the mean, and to the pixel's grey."""
    # All three are linear: one factor, one of the grey and one addend, for few passes over memory.
    values = image.astype(np.float32)
    factor, addend = brightness * contrast, brightness * (1 - contrast) * values.mean()
    if len(image) == 3:
        addend = addend + np.tensordot(_LUMA, values, 1) * np.float32(factor * (1 - saturation))
        factor *= saturation
    values *= np.float32(factor)
    values += addend.astype(np.float32)
    return np.rint(values, out=values).clip(0, 255, out=values).astype(np.uint8)
