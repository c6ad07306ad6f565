"""SSD's augmentation of annotated images: colours, a larger canvas, random crops.

The visible part of an image is a window in its pixels, which may reach beyond it; it is chosen
before any pixel is processed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from .annotations import Annotations, coverage, cut, overlap, shared
from .boxes import areas, iou

_HUE_CIRCLE = 180
"""OpenCV's hue of bytes: half degrees."""


class Window(NamedTuple):
    """A part of an image, in its pixels, that may reach beyond it."""

    top: int
    left: int
    height: int
    width: int

    def part(self, box: np.ndarray) -> Window | None:
        """The pixels that a box, in fractions of it, covers; None if there are none."""
        sides = np.array([self.width, self.height, self.width, self.height])
        left, top, right, bottom = (box * sides).astype(int).tolist()
        if right <= left or bottom <= top:
            return None
        return Window(self.top + top, self.left + left, bottom - top, right - left)


def expand(
    window: Window,
    annotations: Annotations,
    param: Any,
    constraint: Any,
    generator: np.random.Generator,
) -> tuple[Window, Annotations]:
    """A larger window at a random offset, by an ExpansionParameter; and the objects in it."""
    ratio = generator.uniform(1, max(1, param.max_expand_ratio))
    if generator.random() > param.prob or ratio < 1.01:
        return window, annotations
    tall, wide = int(window.height * ratio), int(window.width * ratio)
    top = int(generator.integers(tall - window.height + 1))
    left = int(generator.integers(wide - window.width + 1))
    box = np.array([-left, -top, wide - left, tall - top], np.float64)
    box /= [window.width, window.height, window.width, window.height]
    larger = Window(window.top - top, window.left - left, tall, wide)
    return larger, cut(annotations, box, constraint)


def sample(
    window: Window,
    annotations: Annotations,
    samplers: Iterable[Any],
    constraint: Any,
    generator: np.random.Generator,
) -> tuple[Window, Annotations]:
    """A part of the window: one of those that the samplers (BatchSampler) draw and accept."""
    drawn = [_draw(sampler, annotations.boxes, generator) for sampler in samplers]
    boxes = np.concatenate([*drawn, np.empty((0, 4))])
    if not len(boxes):
        return window, annotations
    box = boxes[generator.integers(len(boxes))]
    part = window.part(box)
    return (window, annotations) if part is None else (part, cut(annotations, box, constraint))


def _draw(sampler: Any, objects: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The boxes (B, 4) that a sampler draws and accepts, as fractions of the window."""
    trials, shape = sampler.max_trials if sampler.use_original_image else 0, sampler.sampler
    scale = generator.uniform(shape.min_scale, shape.max_scale, trials)
    low = np.maximum(shape.min_aspect_ratio, scale * scale)
    high = np.minimum(shape.max_aspect_ratio, 1 / (scale * scale))
    root = np.sqrt(generator.uniform(np.minimum(low, high), high))
    sides = np.stack([scale * root, scale / root], axis=1)
    corners = generator.random((trials, 2)) * (1 - sides).clip(0)
    boxes = np.concatenate([corners, corners + sides], axis=1).clip(0, 1)
    boxes = boxes[satisfying(sampler.sample_constraint, objects, boxes)]
    return boxes[: sampler.max_sample if sampler.HasField("max_sample") else None]


def satisfying(constraint: Any, objects: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Which of the boxes satisfy the first of the constraints that are given, for some object (SSD
    looks at the others only where that one holds)."""
    pairs = objects, boxes[:, None]
    measures = (
        ("min_jaccard_overlap", "max_jaccard_overlap", lambda: iou(*pairs)),
        (
            "min_sample_coverage", "max_sample_coverage",
            lambda: shared(*pairs) / np.maximum(areas(pairs[1]), 1e-12),
        ),
        ("min_object_coverage", "max_object_coverage", lambda: coverage(*pairs)),
    )  # fmt: skip
    for least, most, measure in measures:
        if not constraint.HasField(least) and not constraint.HasField(most):
            continue
        values: np.ndarray = measure()
        low = getattr(constraint, least) if constraint.HasField(least) else -np.inf
        high = getattr(constraint, most) if constraint.HasField(most) else np.inf
        allowed: np.ndarray = np.any((values >= low) & (values <= high), axis=1)
        return allowed
    return np.ones(len(boxes), bool)


def show(
    image: np.ndarray, window: Window, mean: np.ndarray, distortion: Any, generator: Any
) -> np.ndarray:
    """The window's pixels of a uint8 image (height, width, channels).

    mean: the pixels beyond the image, for each channel, for all or (empty) none. distortion:
    a DistortionParameter for those within, or None.
    """
    rows, target_rows = overlap(window.top, image.shape[0], window.height)
    columns, target_columns = overlap(window.left, image.shape[1], window.width)
    inner = image[rows, columns]
    if distortion is not None and inner.size:
        inner = distort(inner, distortion, generator)
    if inner.shape[:2] == (window.height, window.width):
        return inner
    row = np.empty((window.width, image.shape[2]), np.uint8)
    row[...] = mean if mean.size else 0
    canvas = np.empty((window.height, *row.shape), np.uint8)
    canvas[...] = row
    canvas[target_rows, target_columns] = inner
    return canvas


def distort(image: np.ndarray, param: Any, generator: np.random.Generator) -> np.ndarray:
    """A uint8 colour image (height, width, 3: blue first) of other brightness, contrast, saturation
    and hue, by a DistortionParameter."""
    if image.shape[2] != 3:
        return image
    contrast_first = generator.random() > 0.5
    brightness = hue = 0.0
    contrast = saturation = 1.0
    if generator.random() < param.brightness_prob:
        brightness = generator.uniform(-param.brightness_delta, param.brightness_delta)
    if generator.random() < param.contrast_prob:
        contrast = generator.uniform(param.contrast_lower, param.contrast_upper)
    if generator.random() < param.saturation_prob:
        saturation = generator.uniform(param.saturation_lower, param.saturation_upper)
    if generator.random() < param.hue_prob:
        hue = generator.uniform(-param.hue_delta, param.hue_delta)
    order = [0, 1, 2]
    if generator.random() < param.random_order_prob:
        order = generator.permutation(3).tolist()
    if (brightness, hue, contrast, saturation, order) == (0, 0, 1, 1, [0, 1, 2]):
        return image
    first, last = (contrast, 1.0) if contrast_first else (1.0, contrast)
    # Bytes that only one thing happens to are looked up.
    table = np.clip((np.arange(256, dtype=np.float32) + brightness) * first, 0, 255)
    planes = [table[image[..., channel]] for channel in range(3)]
    if saturation != 1 or hue:
        planes = tint(planes, saturation, hue)
    result = np.empty_like(image)
    for channel, source in enumerate(order):
        result[..., channel] = np.rint((planes[source] * last).clip(0, 255))
    return result


def tint(planes: list[np.ndarray], saturation: float, hue: float) -> list[np.ndarray]:
    """Blue, green and red with more or less saturation, and turned by a hue (half degrees)."""
    blue, green, red = planes
    most = np.maximum(np.maximum(blue, green), red)
    chroma = most - np.minimum(np.minimum(blue, green), red)
    safe = np.maximum(chroma, np.float32(1e-6))
    factor = np.minimum(np.float32(saturation), most / safe)
    if not hue:
        return [most - (most - plane) * factor for plane in planes]
    sixths = np.where(
        most == red, (green - blue) / safe,
        np.where(most == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )  # fmt: skip
    sixths += np.float32(hue * 6 / _HUE_CIRCLE)
    sixths += np.where(sixths < 0, np.float32(6), np.float32(0))
    sixths -= np.where(sixths >= 6, np.float32(6), np.float32(0))
    chroma *= factor
    least = most - chroma
    # How much of the chroma each has: by how far its hue is away.
    shares = (2 - np.abs(sixths - 4), 2 - np.abs(sixths - 2), np.abs(sixths - 3) - 1)
    return [least + chroma * share.clip(0, 1) for share in shares]
