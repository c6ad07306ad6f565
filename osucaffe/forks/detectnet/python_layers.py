"""The Python layers of DetectNet, for nets that name NVIDIA Caffe's modules.

caffe.layers.detectnet.clustering and .mean_ap: from grids of coverage and boxes to lists of boxes,
and how good these are. Lists have room for 50 boxes an image; those there are not are 0.
"""

from __future__ import annotations

import math

import numpy as np

from ...errors import UserError
from ...layers.core.python import Hosts, PythonLayer
from ...parsing import as_float, as_int
from ..boxes import iou

ROOM = 50
_LARGEST = 1 << 20
"""Pixels of an image's side."""
MATCH = 0.7
"""The least overlap of a box that is found with the true one."""
FOUND, WRONG, MISSED = 1, 2, 3


def group_rectangles(boxes: np.ndarray, threshold: int, eps: float) -> tuple[np.ndarray, list[int]]:
    """The means of boxes (B, 4: x, y, width, height) that are alike, and how many each is of.

    Groups of `threshold` boxes or fewer are left out, and boxes inside of others that are means of
    more: OpenCV's groupRectangles. Alike: sides differ by no more than eps times a mean length.
    """
    boxes = boxes.astype(int)  # towards 0, as OpenCV reads them
    if threshold <= 0:
        return boxes, [1] * len(boxes)
    sides = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    least, gaps = (np.zeros((len(boxes),) * 2, int) for _ in range(2))
    for extents in boxes[:, 2:].T:
        least += np.minimum.outer(extents, extents)
    for positions in sides.T:
        np.maximum(gaps, np.abs(np.subtract.outer(positions, positions)), out=gaps)
    alike = (gaps <= eps * least / 2) | np.eye(len(boxes), dtype=bool)
    groups: list[tuple[np.ndarray, int]] = []
    ungrouped = np.ones(len(boxes), bool)
    while ungrouped.any():
        group, size = alike[ungrouped.argmax()] & ungrouped, 0
        while size != group.sum():  # and what is alike to what is alike
            size = int(group.sum())
            group = alike[group].any(axis=0) & ungrouped
        ungrouped &= ~group
        total = boxes[group].sum(axis=0).astype(np.float32)
        if size > threshold:
            groups.append((np.rint(total * np.float32(1 / size)).astype(int), size))
    selected = [
        g for g in groups if not any(_hides(*other, *g, eps) for other in groups if other is not g)
    ]
    return np.array([mean for mean, _ in selected]).reshape(-1, 4), [size for _, size in selected]


def _hides(large: np.ndarray, count: int, small: np.ndarray, fewer: int, eps: float) -> bool:
    """Whether a mean lies within another that is of many more boxes."""
    margin = np.rint(large[2:] * eps)
    before, behind = large[:2] - margin, large[:2] + large[2:] + margin
    inside = (small[:2] >= before).all() and (small[:2] + small[2:] <= behind).all()
    return bool(inside) and (count > max(3, fewer) or fewer < 3)


class Cluster(PythonLayer):
    """Coverage (N, classes, H, W) and boxes (N, 4, H, W), relative to their place of the grid, ->
    for each class the boxes (N, 50, 5). param_str begins with the image's width and height, and the
    stride; then `numbers`; then, perhaps, how many classes there are."""

    numbers: tuple[str, ...] = ()

    def setup(self, bottom: Hosts, top: Hosts) -> None:
        names = ("image_size_x", "image_size_y", "stride", *self.numbers)
        try:
            values = [as_float(word) for word in self.param_str.split(",")]
            given = dict(zip(names, values, strict=False))
            self.width, self.height, stride = (
                as_int(int(given[name]), 1, _LARGEST) for name in names[:3]
            )
            self.settings = [given[name] for name in self.numbers]
            classes = int(values[len(names)]) if len(values) > len(names) else 1
            self.grid = self.height // stride, self.width // stride
            if not all(self.grid):
                raise ValueError
        except (ValueError, KeyError):
            form = ", ".join([*names, "num_classes"])
            self.refuse(f"python_param.param_str: {self.param_str!r} must be numbers: {form}")
        if len(top) != classes or bottom[0].shape[1] != classes:
            self.refuse(
                f"top: param_str tells {classes} classes, for which there are {len(top)} tops and "
                f"coverages of {bottom[0].shape[1]}"
            )

    def refuse(self, text: str) -> None:
        raise UserError(f'layer "{self.layer_param.name}" (Python), {text}')

    def reshape(self, bottom: Hosts, top: Hosts) -> None:
        for blob in top:
            blob.reshape(bottom[0].shape[0], ROOM, 5)

    def forward(self, bottom: Hosts, top: Hosts) -> None:
        rows, columns = self.grid
        corner = np.array([self.width / columns, self.height / rows])
        for kind, blob in enumerate(top):
            blob.data[...] = 0
            for image, coverage in enumerate(bottom[0].data[:, kind, :rows, :columns]):
                y, x = np.nonzero(self.covered(coverage))
                positions = np.stack([x, y], axis=1) * corner
                boxes = bottom[1].data[image][:, y, x].T + np.tile(positions, 2)
                # The fork's boxes pass through numbers of 16 bits.
                detected = self.boxes(boxes).astype(np.float16)[:ROOM]
                blob.data[image, : len(detected), : detected.shape[1]] = detected

    def covered(self, coverage: np.ndarray) -> np.ndarray:
        """Which places of a grid have an object."""
        raise NotImplementedError

    def boxes(self, boxes: np.ndarray) -> np.ndarray:
        """What is told of the boxes (B, 4: left, top, right, bottom) at these places."""
        raise NotImplementedError


class ClusterGroundtruth(Cluster):
    """The boxes of a grid of labels, each once."""

    def covered(self, coverage: np.ndarray) -> np.ndarray:
        return coverage > 0

    def boxes(self, boxes: np.ndarray) -> np.ndarray:
        return np.unique(boxes, axis=0)


class ClusterDetections(Cluster):
    """The means of boxes that are found and are alike, with the logarithm of their number."""

    numbers = (
        "gridbox_cvg_threshold", "gridbox_rect_threshold", "gridbox_rect_eps", "min_height"
    )  # fmt: skip

    def covered(self, coverage: np.ndarray) -> np.ndarray:
        return coverage >= self.settings[0]

    def boxes(self, boxes: np.ndarray) -> np.ndarray:
        _, threshold, eps, least = self.settings
        if not boxes.any():
            return np.empty((0, 5))
        sides = np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], axis=1)
        means, counts = group_rectangles(sides, int(threshold), eps)
        rows = [
            (x, y, x + width, y + height, math.log(count))
            for (x, y, width, height), count in zip(means.tolist(), counts, strict=True)
            if height >= least
        ]
        return np.array(rows).reshape(-1, 5)


class ScoreDetections(PythonLayer):
    """True boxes and boxes found (N, 50, 5) -> boxes with 1 if found, 2 if wrong, 3 if missed."""

    def reshape(self, bottom: Hosts, top: Hosts) -> None:
        top[0].reshape(bottom[0].shape[0], ROOM, 5)

    def forward(self, bottom: Hosts, top: Hosts) -> None:
        top[0].data[...] = 0
        for image, (true, detected) in enumerate(zip(bottom[0].data, bottom[1].data, strict=True)):
            true, detected = (rows[rows[:, :4].any(axis=1), :4] for rows in (true, detected))
            taken, met = np.zeros(len(detected), bool), np.zeros(len(true), bool)
            for i, box in enumerate(true):
                free = ~taken & (iou(box[None], detected) >= MATCH)
                if free.any():
                    taken[free.argmax()] = met[i] = True
            rows = np.concatenate([detected[taken], detected[~taken], true[~met]])
            counts = taken.sum(), (~taken).sum(), (~met).sum()
            marks = np.repeat((FOUND, WRONG, MISSED), counts)
            scored = np.column_stack([rows, marks])[:ROOM]
            top[0].data[image, : len(scored)] = scored


class mAP(PythonLayer):
    """Scored boxes -> precision times recall, precision and recall, in percent, of a batch."""

    def reshape(self, bottom: Hosts, top: Hosts) -> None:
        for blob in top:
            blob.reshape(1)

    def forward(self, bottom: Hosts, top: Hosts) -> None:
        marks = bottom[0].data[:, :, 4]
        detected, wrong, missed = (int((marks == mark).sum()) for mark in (FOUND, WRONG, MISSED))
        precision = 100 * detected / max(detected + wrong, 1)
        recall = 100 * detected / max(detected + missed, 1)
        values = (precision * recall / 100, precision, recall)
        for blob, value in zip(top, values, strict=False):
            blob.data[0] = value
