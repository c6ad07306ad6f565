"""DetectNet's training data: augmented images and boxes, and the coverage grid.

As NVIDIA Caffe does it (src/caffe/layers/detectnet_transform_layer.cpp and
src/caffe/util/detectnet_coverage_rectangular.cpp). Boxes are rows x, y, width, height in pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...backends.tensor import Shape
from ...data.pictures.image import whole
from ...data.pictures.resample import interpolate
from ..annotations import overlap
from ..augment import tint

COLUMNS = 16
"""Numbers in a row of DIGITS's lists of objects; the first row tells how many follow, and 16."""
CLASS = 5
"""Which of them is the object's class; the first four are its box."""
PARTS = 8
"""Numbers of a place of the grid before its coverage: foreground, box, 1 / size, object norm."""

_EPSILON = float(np.finfo(np.float32).eps)


@dataclass
class Variation:
    """The augmentation of an image: colours, mirror, size (width, height), rotation, crop.

    hue, angle: degrees. left, top: the corner of the crop that the net sees.
    """

    size: tuple[int, int]
    hue: float = 0.0
    saturation: float = 1.0
    mirror: bool = False
    angle: float = 0.0
    left: int = 0
    top: int = 0


def draw(
    param: Any, size: tuple[int, int], window: tuple[int, int], generator: np.random.Generator
) -> Variation:
    """A variation by a DetectNetAugmentationParameter of an image of this size, of which the net
    sees a crop of size `window` (both: width, height)."""

    def chance(probability: float) -> bool:
        return bool(generator.random() < probability)

    drawn = Variation(size)
    if chance(param.hue_rotation_prob):
        drawn.hue = float(np.clip(generator.uniform(-1, 1) * param.hue_rotation, -180, 180))
    if chance(param.desaturation_prob):
        drawn.saturation = 1 - generator.random() * param.desaturation_max
    drawn.mirror = chance(param.flip_prob)
    if chance(param.scale_prob):
        scale = generator.uniform(param.scale_min, param.scale_max)
        drawn.size = tuple(max(1, whole(extent * scale)) for extent in size)  # type: ignore[assignment]
    if chance(param.rotation_prob):
        drawn.angle = generator.uniform(-1, 1) * param.max_rotate_degree
    offsets, shifts = (0.5, 0.5), (0, 0)
    if chance(param.crop_prob):
        offsets, shifts = tuple(generator.random(2)), (param.shift_x, param.shift_y)
    extents = turned(drawn.size, drawn.angle)[1] if drawn.angle else drawn.size
    drawn.left, drawn.top = (
        whole(offset * (extent - part + shift) - shift // 2)
        for offset, extent, part, shift in zip(offsets, extents, window, shifts, strict=True)
    )
    return drawn


def turned(size: tuple[int, int], angle: float) -> tuple[np.ndarray, tuple[int, int]]:
    """The clockwise rotation of an image around its centre: an affine matrix (2, 3) from old
    pixels (x, y) to those of the enclosing result, and the size of that."""
    radians = math.radians(angle)
    turn = np.array(
        [[math.cos(radians), -math.sin(radians)], [math.sin(radians), math.cos(radians)]]
    )
    half = np.array(size) / 2
    reach = np.abs(turn) @ half
    first, last = np.floor(half - reach), np.ceil(half + reach)
    extent = (last - first + 1).astype(int)
    shift = half - first - turn @ half
    return np.column_stack([turn, shift]), (int(extent[0]), int(extent[1]))


def vary_image(
    image: np.ndarray, mean: np.ndarray | None, drawn: Variation, out: np.ndarray
) -> None:
    """Write to out (3, height, width) the net's view of an image (3, height, width; blue first,
    0 to 255) minus its mean, which has its shape or (3, 1, 1). Pixels beyond the image are 0."""
    planes = list(image)
    if drawn.hue or drawn.saturation < 1 - 1 / 255:
        planes = tint(planes, drawn.saturation, drawn.hue / 2)
    varied: np.ndarray = np.stack(planes, axis=-1)
    if mean is not None:
        varied = varied - mean.transpose(1, 2, 0)
    if drawn.mirror:
        varied = varied[:, ::-1]
    width, height = drawn.size
    if varied.shape[:2] != (height, width):
        varied = interpolate(np.ascontiguousarray(varied), height, width, "CUBIC")
    if drawn.angle:
        varied = _turn(varied, drawn.angle)
    out[...] = 0
    rows, target_rows = overlap(drawn.top, varied.shape[0], out.shape[1])
    columns, target_columns = overlap(drawn.left, varied.shape[1], out.shape[2])
    out[:, target_rows, target_columns] = varied[rows, columns].transpose(2, 0, 1)


def vary_boxes(boxes: np.ndarray, size: tuple[int, int], drawn: Variation) -> np.ndarray:
    """The positions of boxes (B, 4) of an image of this size (width, height) after the variation. A
    rotated one keeps the length of its sides."""
    corner, sides = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    if drawn.mirror:
        corner[:, 0] = size[0] - corner[:, 0] - sides[:, 0] - 1
    scale = np.array(drawn.size) / size
    corner, sides = corner * scale, sides * scale
    if drawn.angle:
        matrix, _ = turned(drawn.size, drawn.angle)
        corner = (corner + sides / 2) @ matrix[:, :2].T + matrix[:, 2] - sides / 2
    return np.concatenate([corner - [drawn.left, drawn.top], sides], axis=1)


class Grid:
    """The grid of an image's ground truth (DetectNetGroundTruthParameter)."""

    def __init__(self, param: Any) -> None:
        self.param = param
        mapped = {mapping.src: mapping.dst for mapping in param.object_class}
        self.classes: dict[int, int] = mapped or {1: 0}
        """The place among the coverages of each class of the lists; KITTI's cars are 1."""
        size = param.image_size_x, param.image_size_y
        self.seen: tuple[int, int] = size
        columns, rows = (round(extent / param.stride) for extent in size)
        self.shape: Shape = (PARTS + max(self.classes.values()) + 1, rows, columns)

    def fill(self, boxes: np.ndarray, classes: np.ndarray, out: np.ndarray) -> None:
        """Write objects to out, of this grid's shape: later ones replace those they cover.

        A place that an object covers has 1, the box's corners less that of the place, 1 / width,
        1 / height, the norm, and 1 as the coverage of its class.
        """
        out[...] = 0
        for box, kind in zip(boxes.tolist(), classes.tolist(), strict=True):
            if int(kind) in self.classes and kind > -1:
                self._enter(box, self.classes[int(kind)], out)

    def _enter(self, box: list[float], kind: int, out: np.ndarray) -> None:
        low, side = box[:2], box[2:]
        if self.param.crop_bboxes:
            high = [min(a + b, end) for a, b, end in zip(low, side, self.seen, strict=True)]
            low = [max(a, 0.0) for a in low]
            side = [max(b - a, 0.0) for a, b in zip(low, high, strict=True)]
        if min(side) <= 0 or side[0] * side[1] < _EPSILON:
            return
        stride = self.param.stride
        reach = [self._reach(extent) for extent in side]
        begin = [a + (b - c) / 2 for a, b, c in zip(low, side, reach, strict=True)]
        shares, first = [], []
        for start, extent, count in zip(begin, reach, (out.shape[2], out.shape[1]), strict=True):
            last = min(math.ceil((start + extent) / stride), count)
            first.append(max(math.floor(start / stride), 0))
            corners = np.arange(first[-1], max(last, first[-1])) * stride
            inside = np.minimum(corners + stride, start + extent) - np.maximum(corners, start)
            shares.append(inside.clip(0) / stride)
        covered = np.outer(shares[1], shares[0]) > _EPSILON
        at_row, at_column = np.nonzero(covered) + np.array(first[::-1])[:, None]
        out[PARTS:, at_row, at_column] = 0
        out[PARTS + kind, at_row, at_column] = 1
        out[0, at_row, at_column] = 1
        for axis, index in enumerate((at_column, at_row)):
            out[1 + axis, at_row, at_column] = low[axis] - index * stride
            out[3 + axis, at_row, at_column] = low[axis] + side[axis] - index * stride
            out[5 + axis, at_row, at_column] = 1 / side[axis]
        least = 0.0 if self.param.obj_norm else 1.0
        norm = stride * stride / max(reach[0] * reach[1], _EPSILON)
        out[7, at_row, at_column] = max(least, norm)

    def _reach(self, extent: float) -> float:
        """How much of a side of a box is covered."""
        param = self.param
        part = extent * param.scale_cvg
        if param.gridbox_type == param.GRIDBOX_MIN:
            return float(min(extent, max(param.min_cvg_len, part)))
        return float(min(param.max_cvg_len, part))


def _turn(image: np.ndarray, angle: float) -> np.ndarray:
    """An image (height, width, channels) turned, with 0 around it; pixels by bilinear means."""
    height, width = image.shape[:2]
    matrix, (across, down) = turned((width, height), angle)
    inverse = np.linalg.inv(matrix[:, :2])
    x, y = np.meshgrid(np.arange(across) - matrix[0, 2], np.arange(down) - matrix[1, 2])
    # OpenCV rounds the places to a 32nd of a pixel.
    columns, rows = (np.rint((row[0] * x + row[1] * y) * 32) / 32 for row in inverse)
    inside = (columns >= 0) & (columns <= width - 1) & (rows >= 0) & (rows <= height - 1)
    columns, rows = columns[inside], rows[inside]
    left = np.minimum(columns.astype(int), max(width - 2, 0))
    top = np.minimum(rows.astype(int), max(height - 2, 0))
    right, bottom = np.minimum(left + 1, width - 1), np.minimum(top + 1, height - 1)
    a, b = (columns - left)[:, None], (rows - top)[:, None]
    result = np.zeros((down, across, image.shape[2]), np.float32)
    upper = image[top, left] * (1 - a) + image[top, right] * a
    result[inside] = (
        upper * (1 - b) + (image[bottom, left] * (1 - a) + image[bottom, right] * a) * b
    )
    return result
