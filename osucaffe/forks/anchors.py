"""The boxes of region proposal networks: anchors, boxes coded against them, overlaps.

Boxes are rows x1, y1, x2, y2 in pixels, the last ones included: width is x2 - x1 + 1. All follows
Ren et al. 2015 as their code (py-faster-rcnn) has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def anchors_of(base: int, ratios: Sequence[float], scales: Sequence[float]) -> np.ndarray:
    """The anchors of the first cell, of base x base pixels: ratio by ratio, scale by scale."""
    widths = np.round(np.sqrt(base * base / np.asarray(ratios, np.float64)))
    heights = np.round(widths * ratios)
    sizes = np.stack([widths, heights], axis=1)[:, None] * np.reshape(scales, (1, -1, 1))
    half = (sizes.reshape(-1, 2) - 1) / 2
    centre = (base - 1) / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def shifted(anchors: np.ndarray, extents: Sequence[int], stride: int) -> np.ndarray:
    """The anchors of all cells of a map (H, W): by rows, in these by columns, then one by one."""
    y, x = np.mgrid[: extents[0], : extents[1]] * stride
    shifts = np.stack([x, y, x, y], axis=-1).reshape(-1, 1, 4)
    return (shifts + anchors).reshape(-1, 4)


def by_anchor(maps: np.ndarray, numbers: int) -> np.ndarray:
    """Maps (1, A * numbers, H, W) as rows of numbers, in the order of `shifted`."""
    return maps.transpose(0, 2, 3, 1).reshape(-1, numbers)


def encode(boxes: np.ndarray, ground_truths: np.ndarray) -> np.ndarray:
    """What turns boxes into truths: shifts in proportion to the size, logarithms of growth."""
    size, target = (np.maximum(rows[:, 2:] - rows[:, :2] + 1, 1) for rows in (boxes, ground_truths))
    shift = ground_truths[:, :2] + target / 2 - boxes[:, :2] - size / 2
    return np.concatenate([shift / size, np.log(target / size)], axis=1)


def decode(boxes: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """The boxes that `encode` was given as truths."""
    size = boxes[:, 2:] - boxes[:, :2] + 1
    centre = boxes[:, :2] + size / 2 + deltas[:, :2] * size
    half = np.exp(deltas[:, 2:]) * size / 2
    return np.concatenate([centre - half, centre + half], axis=1)


def clipped(boxes: np.ndarray, height: float, width: float) -> np.ndarray:
    """The boxes inside an image."""
    limits = np.array([width, height, width, height]) - 1
    return np.maximum(np.minimum(boxes, limits), 0)


def areas(boxes: np.ndarray) -> np.ndarray:
    """Of boxes, in pixels."""
    size = boxes[:, 2:] - boxes[:, :2] + 1
    return size[:, 0] * size[:, 1]


def iou(
    boxes: np.ndarray, others: np.ndarray, of: str = "IOU", *, strict: bool = False
) -> np.ndarray:
    """Intersection over union of each of the boxes with each of the others.

    of: "IOU", or in proportion to the smaller one ("IOMU") or to the first one ("IOFU"). strict:
    boxes less than a pixel apart share nothing, where otherwise the rest of that pixel counts.
    """
    first, second = boxes.T[..., None], others.T[:, None]
    return _shares(first, areas(boxes)[:, None], second, areas(others), of, strict)


def paired_iou(boxes: np.ndarray, others: np.ndarray, *, strict: bool = False) -> np.ndarray:
    """Intersection over union of each box with the other one of its row."""
    return _shares(boxes.T, areas(boxes), others.T, areas(others), "IOU", strict)


def _shares(
    a: np.ndarray, area_a: np.ndarray, b: np.ndarray, area_b: np.ndarray, of: str, strict: bool
) -> np.ndarray:
    """`iou` of boxes as x1, y1, x2, y2, with their areas: of those that are broadcast."""
    width = np.minimum(a[2], b[2]) - np.maximum(a[0], b[0]) + 1
    height = np.minimum(a[3], b[3]) - np.maximum(a[1], b[1]) + 1
    common: np.ndarray = np.maximum(width, 0) * np.maximum(height, 0)
    if strict:
        common *= (width >= 1) & (height >= 1)
    if of == "IOU":
        return common / (area_a + area_b - common)
    return common / (np.minimum(area_a, area_b) if of == "IOMU" else area_a)


def nms(
    boxes: np.ndarray, threshold: float, most: int = 0, of: str = "IOU", *, strict: bool = False
) -> np.ndarray:
    """Non-maximum suppression: which of the boxes, best first, to keep (at most; 0: any number).

    A box goes where one that is kept overlaps it by more than the threshold (see `iou`).
    """
    remaining, selected = np.arange(len(boxes)), list[int]()
    columns, sizes = np.ascontiguousarray(boxes.T), areas(boxes)
    while len(remaining) and not (most and len(selected) == most):
        selected.append(remaining[0])
        share = _shares(columns[:, 0], sizes[0], columns[:, 1:], sizes[1:], of, strict)
        stay = np.flatnonzero(share <= threshold) + 1
        remaining, columns, sizes = remaining[stay], columns[:, stay], sizes[stay]
    return np.array(selected, np.intp)


def sample(random: np.random.Generator, indices: np.ndarray, count: int) -> np.ndarray:
    """Some of the places, if there are more than that many, in their order."""
    if len(indices) <= count:
        return indices
    return np.sort(random.choice(indices, count, replace=False))
