"""What the layers of YOLO share: boxes that the cells of a grid predict, and their overlaps.

A cell's numbers, of each of its anchors: x, y, width, height, whether there is an object, and
classes. Boxes are centre x, centre y, width, height, in parts of the image.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...layers.base import Layer, Shape, Shapes


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def softmax(x: np.ndarray) -> np.ndarray:
    """Along axis 1."""
    power = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(power / power.sum(axis=1, keepdims=True))


def check_grid(layer: Layer, bottom: Shapes, anchors: int, classes: int, position: int = 0) -> None:
    """Refuse a bottom that does not hold the numbers of that many anchors and classes."""
    layer.check_axes(bottom[position], field=f"bottom[{position}]")
    items, _, *extents = bottom[position]
    shape = (items, anchors * (5 + classes), *extents)
    layer.check_bottom(bottom, position, shape, f": {anchors} anchors of 5 + {classes} numbers")


def read_anchors(layer: Layer, field: str, biases: Sequence[float], least: int) -> np.ndarray:
    """Widths and heights of anchors, (count, 2)."""
    if len(biases) % 2 or len(biases) < 2 * least:
        layer.fail(field, f"needs widths and heights of {least} anchors, but has {len(biases)}")
    return np.array(biases).reshape(-1, 2)


def check_mask(layer: Layer, field: str, mask: list[int], count: int, anchors: int) -> None:
    """Refuse a list of too few anchors, or of those that there are not."""
    if len(mask) < count or max(mask) >= anchors:
        layer.fail(field, f"is {mask}, but must name {count} of {anchors} anchors, from 0 on")


def to_cells(x: np.ndarray, anchors: int, fractions: Sequence[int] | slice) -> np.ndarray:
    """A grid (anchors * numbers, H, W) as (anchors, numbers, H, W), with the sigmoids of x, y and
    those other numbers that are fractions."""
    cells = x.reshape(anchors, -1, *x.shape[-2:]).astype(np.float64)
    cells[:, :2], cells[:, fractions] = sigmoid(cells[:, :2]), sigmoid(cells[:, fractions])
    return cells


def boxes_of(cells: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """What cells (A, 4 or more, H, W) predict with anchors (A, 2) in fractions of the image:
    (A, 4, H, W). x and y of the cells are fractions of a cell already."""
    rows, columns = np.indices(cells.shape[2:])
    boxes = np.empty_like(cells[:, :4])
    boxes[:, 0] = (columns + cells[:, 0]) / cells.shape[3]
    boxes[:, 1] = (rows + cells[:, 1]) / cells.shape[2]
    with np.errstate(over="ignore"):
        boxes[:, 2:] = np.exp(cells[:, 2:4]) * anchors[:, :, None, None]
    return boxes


def fits(sizes: np.ndarray, box: Sequence[float]) -> np.ndarray:
    """The overlaps of boxes of these widths and heights (count, 2) with one of the same center."""
    centered = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
    return iou(centered.T, np.array([0, 0, *box[2:4]]))


def cell_of(box: Sequence[float], extents: Shape) -> tuple[int, int]:
    """Column and row of the cell in which a box has its centre."""
    height, width = extents
    return min(max(int(box[0] * width), 0), width - 1), min(
        max(int(box[1] * height), 0), height - 1
    )


def aims_of(box: Sequence[float], extents: Shape, anchor: np.ndarray) -> np.ndarray:
    """What the cell of a box should tell with this anchor: shares of the cell, and logarithms."""
    column, row = cell_of(box, extents)
    with np.errstate(divide="ignore"):
        logarithms = np.log(np.array(box[2:4]) / anchor)
    return np.array([box[0] * extents[1] - column, box[1] * extents[0] - row, *logarithms])


def iou(boxes: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Intersections over unions: of boxes (4, ...) with a box, or as many."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        low = np.maximum(boxes[:2].T - boxes[2:].T / 2, other[:2].T - other[2:].T / 2)
        high = np.minimum(boxes[:2].T + boxes[2:].T / 2, other[:2].T + other[2:].T / 2)
        sides = np.maximum(high - low, 0).T
        inner = sides[0] * sides[1]
        return np.nan_to_num(inner / (boxes[2] * boxes[3] + other[2] * other[3] - inner))


def nms(boxes: np.ndarray, threshold: float) -> np.ndarray:
    """Which of boxes (count, 4), best first, overlap with no better one that is kept."""
    remaining, selected = np.arange(len(boxes)), []
    while len(remaining):
        best, remaining = remaining[0], remaining[1:]
        selected.append(best)
        remaining = remaining[iou(boxes[remaining].T, boxes[best]) < threshold]
    return np.array(selected, int)


def ground_truths_of(labels: np.ndarray, items: int) -> list[np.ndarray]:
    """The objects of each image, rows of class, x, y, width, height.

    labels: rows of SSD's 8 numbers (item, class from 1, .., corners, difficult), as Intel Caffe has
    them; or by image rows of these five up to one without x or width (choasup/caffe-yolo9000,
    eric612/MobileNet-YOLO).
    """
    if not is_ssds(labels.shape):
        rows = labels.reshape(items, -1, 5).astype(np.float64)
        ends = ((rows[:, :, 1] == 0) | (rows[:, :, 3] == 0)).cumsum(axis=1) > 0
        return [image[~end] for image, end in zip(rows, ends, strict=True)]
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
        text = f"1 x 1 x M x 8, as of AnnotatedData, or {items} x M x 5: class, x, y, width, height"
        layer.fail("bottom[1]", f"has shape {shape}, but must be {text}")
