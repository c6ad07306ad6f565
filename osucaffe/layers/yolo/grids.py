"""Owns what the layers of YOLO share: boxes that the cells of a grid predict, and their overlaps.

A cell's numbers, of each of its anchors: x, y, width, height, whether there is an object, and
classes. Boxes are centre x, centre y, width, height, in parts of the image.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base import Layer, Shape


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def softmax(x: np.ndarray) -> np.ndarray:
    """Along axis 1."""
    power = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(power / power.sum(axis=1, keepdims=True))


def check_grid(layer: Layer, shape: Shape, anchors: int, classes: int, position: int = 0) -> None:
    """Refuse a bottom that does not hold the numbers of so many anchors and classes."""
    wanted = anchors * (5 + classes)
    if len(shape) != 4 or shape[1] != wanted:
        layer.fail(
            f"bottom[{position}]",
            f"has shape {shape}, but {anchors} anchors of 5 + {classes} numbers need "
            f"N x {wanted} x H x W",
        )


def read_anchors(layer: Layer, field: str, biases: Sequence[float], least: int) -> np.ndarray:
    """Widths and heights of anchors, (count, 2)."""
    if len(biases) % 2 or len(biases) < 2 * least:
        layer.fail(field, f"needs widths and heights of {least} anchors, but has {len(biases)}")
    return np.array(biases).reshape(-1, 2)


def check_mask(layer: Layer, field: str, mask: list[int], wanted: int, anchors: int) -> None:
    """Refuse a list of too few anchors, or of those that there are not."""
    if len(mask) < wanted or any(each >= anchors for each in mask):
        layer.fail(field, f"is {mask}, but must name {wanted} of {anchors} anchors, from 0 on")


def boxes_of(cells: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """What cells (A, 4 or more, H, W) predict with anchors (A, 2) in parts of the image:
    (A, 4, H, W). x and y of the cells are shares of a cell already."""
    rows, columns = np.indices(cells.shape[2:])
    boxes = np.empty_like(cells[:, :4])
    boxes[:, 0] = (columns + cells[:, 0]) / cells.shape[3]
    boxes[:, 1] = (rows + cells[:, 1]) / cells.shape[2]
    with np.errstate(over="ignore"):
        boxes[:, 2:] = np.exp(cells[:, 2:4]) * anchors[:, :, None, None]
    return boxes


def cell_of(box: Sequence[float], extents: Shape) -> tuple[int, int]:
    """Column and row of the cell in which a box has its centre."""
    column, row = (
        min(max(int(place * extent), 0), extent - 1)
        for place, extent in zip(box[:2], extents[::-1], strict=True)
    )
    return column, row


def aims_of(box: Sequence[float], extents: Shape, anchor: np.ndarray) -> np.ndarray:
    """What the cell of a box should tell with this anchor: shares of the cell, and logarithms."""
    column, row = cell_of(box, extents)
    with np.errstate(divide="ignore"):
        logarithms = np.log(np.array(box[2:4]) / anchor)
    return np.array([box[0] * extents[1] - column, box[1] * extents[0] - row, *logarithms])


def overlaps(boxes: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Intersections over unions: of boxes (4, ...) with a box, or as many."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        low = [np.maximum(boxes[i] - boxes[i + 2] / 2, other[i] - other[i + 2] / 2) for i in (0, 1)]
        high = [
            np.minimum(boxes[i] + boxes[i + 2] / 2, other[i] + other[i + 2] / 2) for i in (0, 1)
        ]
        sides = [np.maximum(b - a, 0) for a, b in zip(low, high, strict=True)]
        inner = sides[0] * sides[1]
        return np.nan_to_num(inner / (boxes[2] * boxes[3] + other[2] * other[3] - inner))


def thin(boxes: np.ndarray, threshold: float) -> np.ndarray:
    """Which of boxes (count, 4), best first, overlap with no better one that is kept."""
    left = np.arange(len(boxes))
    kept = []
    while len(left):
        kept.append(left[0])
        left = left[1:][overlaps(boxes[left[1:]].T, boxes[left[0]]) < threshold]
    return np.array(kept, int)


def truths_of(labels: np.ndarray, items: int) -> list[np.ndarray]:
    """The objects of each image, rows of class, x, y, width, height.

    labels: rows of SSD's 8 numbers (item, class from 1, .., corners, difficult), as Intel Caffe has
    them; or by image rows of these five up to one without x or width (choasup/caffe-yolo9000,
    eric612/MobileNet-YOLO).
    """
    if not is_ssds(labels.shape):
        rows = labels.reshape(items, -1, 5).astype(np.float64)
        ends = ((rows[:, :, 1] == 0) | (rows[:, :, 3] == 0)).cumsum(axis=1) > 0
        return [each[~end] for each, end in zip(rows, ends, strict=True)]
    lines = labels.reshape(-1, 8).astype(np.float64)
    low, high = lines[:, 3:5], lines[:, 5:7]
    objects = np.concatenate([lines[:, 1:2] - 1, (low + high) / 2, high - low], axis=1)
    return [objects[lines[:, 0] == item] for item in range(items)]


def is_ssds(shape: Shape) -> bool:
    """Whether labels are SSD's rows of 8 numbers."""
    return shape[-1:] == (8,)


def check_truths(layer: Layer, shape: Shape, items: int) -> None:
    """Refuse labels that `truths_of` cannot read."""
    count = int(np.prod(shape))
    if not is_ssds(shape) and (shape[:1] != (items,) or count // items % 5):
        layer.fail(
            "bottom[1]",
            f"has shape {shape}, but must be 1 x 1 x M x 8, as AnnotatedData gives it, or "
            f"{items} x M x 5: class, x, y, width, height",
        )
