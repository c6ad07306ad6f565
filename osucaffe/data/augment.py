"""Owns how SSD varies annotated images: colours, a larger canvas, parts drawn from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from osucaffe.backends.boxes import areas, overlaps

from .boxes import Annotations, coverage, cut, shared

_HUE_CIRCLE = 180
"""OpenCV's hue of bytes: half degrees."""


def distort(image: np.ndarray, param: Any, generator: np.random.Generator) -> np.ndarray:
    """A uint8 colour image (height, width, 3: blue first) of other brightness, contrast, saturation
    and hue, by a DistortionParameter."""
    if image.shape[2] != 3:
        return image
    pixels = image.astype(np.float32)
    contrast_first = generator.random() > 0.5
    if generator.random() < param.brightness_prob:
        pixels += generator.uniform(-param.brightness_delta, param.brightness_delta)
    contrast = saturation = 1.0
    if generator.random() < param.contrast_prob:
        contrast = generator.uniform(param.contrast_lower, param.contrast_upper)
    if generator.random() < param.saturation_prob:
        saturation = generator.uniform(param.saturation_lower, param.saturation_upper)
    hue = 0.0
    if generator.random() < param.hue_prob:
        hue = generator.uniform(-param.hue_delta, param.hue_delta)
    if contrast_first:
        pixels *= contrast
    if saturation != 1 or hue:
        pixels = _tint(pixels.clip(0, 255), saturation, hue)
    if not contrast_first:
        pixels *= contrast
    if generator.random() < param.random_order_prob:
        pixels = pixels[..., generator.permutation(3)]
    return np.rint(pixels).clip(0, 255).astype(np.uint8)


def _tint(pixels: np.ndarray, saturation: float, hue: float) -> np.ndarray:
    """Colours with more or less saturation, and turned about the circle of hues."""
    most, least = pixels.max(axis=2), pixels.min(axis=2)
    chroma = most - least
    blue, green, red = pixels.transpose(2, 0, 1)
    safe = np.where(chroma > 0, chroma, 1)
    sixths = np.where(
        most == red, (green - blue) / safe,
        np.where(most == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )  # fmt: skip
    sixths = np.where(chroma > 0, sixths, 0) + hue * 6 / _HUE_CIRCLE
    chroma = np.minimum(chroma * saturation, most)
    # Each of blue, green, red is the most, less the chroma times how far its hue is away.
    away = np.stack([(sixths + shift) % 6 for shift in (1, 3, 5)], axis=-1)
    away = np.minimum(away, 4 - away).clip(0, 1)
    return most[..., None] - chroma[..., None] * away


def expand(
    image: np.ndarray,
    annotations: Annotations,
    param: Any,
    mean: np.ndarray,
    constraint: Any,
    generator: np.random.Generator,
) -> tuple[np.ndarray, Annotations]:
    """The image somewhere on a larger one, by an ExpansionParameter. mean: of its pixels, for
    each channel, for all or (0 of them) none."""
    ratio = generator.uniform(1, max(1, param.max_expand_ratio))
    if generator.random() > param.prob or ratio < 1.01:
        return image, annotations
    height, width, channels = image.shape
    tall, wide = int(height * ratio), int(width * ratio)
    top, left = generator.integers(tall - height + 1), generator.integers(wide - width + 1)
    canvas = np.zeros((tall, wide, channels), np.uint8)
    if mean.size:
        canvas[...] = mean
    canvas[top : top + height, left : left + width] = image
    part = np.array([-left / width, -top / height, (wide - left) / width, (tall - top) / height])
    return canvas, cut(annotations, part, constraint)


def sample(
    image: np.ndarray,
    annotations: Annotations,
    samplers: Iterable[Any],
    constraint: Any,
    generator: np.random.Generator,
) -> tuple[np.ndarray, Annotations]:
    """A part of the image: one of those that the samplers (BatchSampler) draw and allow."""
    parts = [
        part for each in samplers if each.use_original_image
        for part in _draw(each, annotations.boxes, generator)
    ]  # fmt: skip
    if not parts:
        return image, annotations
    part = parts[generator.integers(len(parts))].clip(0, 1)
    height, width = image.shape[:2]
    left, top, right, bottom = (part * [width, height, width, height]).astype(int)
    if right <= left or bottom <= top:
        return image, annotations
    return image[top:bottom, left:right], cut(annotations, part, constraint)


def _draw(sampler: Any, boxes: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    shape = sampler.sampler
    for _ in range(sampler.max_trials):
        if sampler.HasField("max_sample") and len(found) >= sampler.max_sample:
            break
        scale = generator.uniform(shape.min_scale, shape.max_scale)
        low = max(shape.min_aspect_ratio, scale * scale)
        high = min(shape.max_aspect_ratio, 1 / (scale * scale))
        root = generator.uniform(min(low, high), high) ** 0.5
        sides = np.array([scale * root, scale / root])
        corner = generator.random(2) * (1 - sides).clip(0)
        part = np.concatenate([corner, corner + sides])
        if _allows(sampler.sample_constraint, boxes, part):
            found.append(part)
    return found


def _allows(constraint: Any, boxes: np.ndarray, part: np.ndarray) -> bool:
    """Whether some object meets one of the limits that there are."""
    measures = (
        ("min_jaccard_overlap", "max_jaccard_overlap", overlaps),
        ("min_object_coverage", "max_object_coverage", coverage),
        (
            "min_sample_coverage", "max_sample_coverage",
            lambda boxes, part: shared(boxes, part) / areas(part),
        ),
    )  # fmt: skip
    limited = False
    for least, most, measure in measures:
        if not constraint.HasField(least) and not constraint.HasField(most):
            continue
        limited = True
        values = measure(boxes, part)
        low = getattr(constraint, least) if constraint.HasField(least) else -np.inf
        high = getattr(constraint, most) if constraint.HasField(most) else np.inf
        if ((values >= low) & (values <= high)).any():
            return True
    return not limited
