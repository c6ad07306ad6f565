"""The transformation of annotated boxes when their image is cropped, resized or mirrored.

Boxes are rows (xmin, ymin, xmax, ymax) in fractions of their image.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .boxes import areas


class Annotations(NamedTuple):
    """The objects of an image: labels (B, 2: label and instance), boxes (B, 4), difficult (B)."""

    labels: np.ndarray
    boxes: np.ndarray
    difficult: np.ndarray

    def pick(self, which: np.ndarray) -> Annotations:
        """Some of them."""
        return Annotations(self.labels[which], self.boxes[which], self.difficult[which])


def shared(boxes: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The areas that boxes share with parts of the image, broadcast against each other."""
    low = np.maximum(boxes[..., :2], part[..., :2])
    high = np.minimum(boxes[..., 2:], part[..., 2:])
    area: np.ndarray = (high - low).clip(0).prod(axis=-1)
    return area


def coverage(boxes: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The fractions of boxes that are in parts of the image, broadcast against each other."""
    area, within = areas(boxes), shared(boxes, part)
    return np.divide(within, area, out=np.zeros_like(within), where=area > 0)


def cut(annotations: Annotations, part: np.ndarray, constraint: Any = None) -> Annotations:
    """The objects in a part of the image, in fractions of it, clipped to it.

    part: may reach beyond the image, too. constraint: an EmitConstraint that they must meet.
    """
    boxes = annotations.boxes
    mask = ((boxes[:, :2] < part[2:]) & (boxes[:, 2:] > part[:2])).all(axis=1)
    if constraint is not None and constraint.emit_type == constraint.CENTER:
        centres = (boxes[:, :2] + boxes[:, 2:]) / 2
        mask &= ((centres >= part[:2]) & (centres <= part[2:])).all(axis=1)
    elif constraint is not None:
        mask &= coverage(boxes, part) > constraint.emit_overlap
    sides = part[2:] - part[:2]
    moved = ((boxes - np.tile(part[:2], 2)) / np.tile(sides, 2)).clip(0, 1)
    mask &= areas(moved) > 0
    return annotations._replace(boxes=moved).pick(mask)


def mirror(annotations: Annotations) -> Annotations:
    """Those of the image's mirror image."""
    xmin, ymin, xmax, ymax = annotations.boxes.T
    return annotations._replace(boxes=np.stack([1 - xmax, ymin, 1 - xmin, ymax], axis=1))


def overlap(first: int, extent: int, size: int) -> tuple[slice, slice]:
    """Which rows of an image of `extent` are among the `size` from `first` on, and where there."""
    begin, end = max(first, 0), min(first + size, extent)
    if end <= begin:
        return slice(0, 0), slice(0, 0)
    return slice(begin, end), slice(begin - first, end - first)
