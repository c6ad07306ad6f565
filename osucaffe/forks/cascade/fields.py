"""How MS-CNN and Cascade R-CNN code boxes on maps (against a field about each cell's middle),
and the maps of fields and objects that their proposal networks learn from.

A code is the middle's shift in proportion to the field, and the logarithms of the growth,
normalized by `bbox_reg_param` and bounded by field_xyr and field_whr. A map (6, H, W) tells of each
cell the label of the object that its field matches (0: none), its middle's x and y, width and
height, and the overlap; 1 where a cell is not to count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...data.pictures.image import whole
from ...layers.base import Layer, Program, Shape, Shapes, Tensor
from ...layers.core.losses import read_ignored
from .. import anchors
from .object_crops import Placed


def read_regression(layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """The means and standard deviations that box codes were normalized by."""
    param = layer.param.bbox_reg_param
    if not (param.bbox_mean and param.bbox_std):
        return np.zeros(4), np.ones(4)
    if len(param.bbox_mean) != 4 or len(param.bbox_std) != 4 or min(param.bbox_std) <= 0:
        layer.fail("bbox_reg_param", "needs four of bbox_mean and four of bbox_std, above 0")
    return np.array(param.bbox_mean), np.array(param.bbox_std)


def check_suppression(layer: Layer, param: Any, field: str) -> None:
    """Refuse an nms_type that there is not."""
    if param.nms_type not in ("IOU", "IOMU", "IOFU"):
        layer.fail(f"{field}.nms_type", f'is "{param.nms_type}": IOU, IOMU or IOFU')


def mean(values: np.ndarray) -> float:
    """The mean; -1 where there are no values."""
    return float(values.astype(np.float64).mean()) if len(values) else -1.0


class FieldCodes:
    """The coding of a layer's message `param`, called `name`."""

    def __init__(self, layer: Layer, param: Any, name: str):
        self.mean, self.deviation = read_regression(layer)
        for field in ("field_whr", "field_xyr"):
            if getattr(param, field) <= 0:
                layer.fail(f"{name}.{field}", "must be above 0")
        self.shift, self.growth = 1 / param.field_xyr, math.log(param.field_whr)

    def decode(self, codes: np.ndarray, field: Sequence[float], stride: int) -> np.ndarray:
        """x1, y1, width and height (H * W, 4) of the boxes that a map (4, H, W) tells."""
        rows = codes.reshape(4, -1).T * self.deviation + self.mean
        size = np.array(field) * np.exp(np.clip(rows[:, 2:], -self.growth, self.growth))
        middle = _centers(codes.shape[1:], stride).reshape(2, -1).T
        middle = middle + np.array(field) * np.clip(rows[:, :2], -self.shift, self.shift)
        return np.concatenate([middle - size / 2, size], axis=1)

    def encode(self, boxes: np.ndarray, field: Sequence[float], stride: int) -> np.ndarray:
        """The codes (4, H, W) of a map of boxes: their middles' x and y, width, height."""
        extent = np.array(field).reshape(2, 1, 1)
        shift = (boxes[:2] - _centers(boxes.shape[1:], stride)) / extent
        codes = np.concatenate([shift, np.log(np.maximum(boxes[2:], 2) / extent)])
        return (codes - self.mean[:, None, None]) / self.deviation[:, None, None]

    def bounds(self) -> dict[str, float]:
        """What normalized codes are bounded by, as the losses take it: the axes share theirs."""
        bounds = {}
        for name, limit, part in (
            ("shift", self.shift, slice(2)),
            ("growth", self.growth, slice(2, 4)),
        ):
            mean, deviation = self.mean[part].mean(), math.sqrt(self.deviation[part].prod())
            bounds[f"least_{name}"] = float((-limit - mean) / deviation)
            bounds[f"most_{name}"] = float((limit - mean) / deviation)
        return bounds


class FieldLayer(Layer):
    """A layer over maps of scores and codes, and over truth.

    MS-CNN's have one field and scores and codes in one bottom, Cascade R-CNN's several fields.
    """

    messages: tuple[str, ...]
    setting: Any
    fields: list[tuple[int, int]]
    stride: int

    def read_maps(self, bottom: Shapes) -> None:
        """Read the message that comes first, and check that the bottoms are such maps."""
        name = self.messages[0]
        param = self.setting = getattr(self.param, name)
        if "downsample_rate" in param.DESCRIPTOR.fields_by_name:
            self.fields, self.stride = [(param.field_w, param.field_h)], param.downsample_rate
            channels: tuple[int, ...] = (param.cls_num + 4, 6)
            if param.coord_num != 4:
                self.fail(f"{name}.coord_num", "must be 4")
        else:
            if len(param.field_w) != len(param.field_h):
                self.fail(f"{name}.field_h", "must be as many as field_w")
            self.fields = list(zip(param.field_w, param.field_h, strict=True))
            self.stride, channels = param.stride, (param.cls_num, 4, 6)
        if not self.fields or min(map(min, self.fields)) < 1 or self.stride < 1:
            self.fail(name, "needs as many field_w as field_h, and how many pixels a cell has")
        if param.cls_num < 2 or (param.objectness and param.cls_num != 2):
            self.fail(f"{name}.cls_num", "must be at least 2, and 2 where objectness is true")
        self.codes = FieldCodes(self, param, name)
        self.ignored = read_ignored(self.param.loss_param)
        self.check_axes(bottom[0], field="bottom[0]")
        for i, count in enumerate(channels):
            self.check_bottom(bottom, i, (bottom[0][0], count, *bottom[0][2:]))
        if bottom[0][0] % len(self.fields):
            text = f"has shape {bottom[0]}: it needs a multiple of {len(self.fields)} fields"
            self.fail("bottom[0]", text)

    def row_major(self, program: Program, x: Tensor) -> Tensor:
        """A copy as the host reads it."""
        copy = self.tensor(x.shape)
        program.copy(x, copy)
        return copy

    def shown(self, labels: np.ndarray) -> np.ndarray:
        """The labels that scores are of: with `objectness`, 1 for every object."""
        return np.minimum(labels, 1) if self.setting.objectness else labels


def _centers(extents: Shape, stride: int) -> np.ndarray:
    """x and y of the centers of the cells (2, H, W)."""
    return (np.indices(extents)[::-1] + 0.5) * stride


class Rules(NamedTuple):
    """When a field is an object's."""

    fields: list[tuple[int, int, int]]
    """Width, height and pixels of a cell, map by map."""
    edges: bool
    """MS-CNN: x2 and y2 are the edges of boxes; Cascade R-CNN: the last pixels."""
    foreground: float
    of_no_interest: float = 0.4
    pick_up: float = 0.2
    margin: float | None = None
    """How far a field may reach beyond the image, in halves of it."""
    least_inside: float | None = None


def field_maps(placed: Placed, extents: tuple[int, int], rules: Rules) -> list[np.ndarray]:
    """The maps for an image of these extents, (6, H, W) each."""
    objects, edge = placed.picture.objects, 1.0 if rules.edges else 0.0
    last = np.array([0, 0, edge, edge])
    boxes, regions = objects[:, 3:] - last, placed.picture.regions - last
    middles = (objects[:, 3:5] + objects[:, 5:]) / 2
    sizes = objects[:, 5:] - objects[:, 3:5] + 1 - edge
    best, best_map = np.zeros(len(objects)), np.zeros(len(objects), int)
    matched, maps = np.zeros(len(objects), bool), list[np.ndarray]()
    for number, (width, height, stride) in enumerate(rules.fields):
        rows, columns = (whole(extent / stride) for extent in extents)
        middle, half = (
            _centers((rows, columns), stride).reshape(2, -1).T,
            np.array([width, height]) / 2,
        )
        fields = np.concatenate([middle - half, middle + half], axis=1)
        off = _off_image(fields, placed.inside, (rows, columns), stride, half, rules)
        cells = fields - last
        aside = anchors.iou(cells, regions, "IOFU", strict=not rules.edges).sum(axis=1)
        aside = aside >= rules.of_no_interest
        skipped = off | aside if rules.edges else off
        shared = anchors.iou(cells, boxes, strict=not rules.edges)
        shared = np.where(skipped[:, None], 0, np.nan_to_num(np.maximum(shared, 0)))
        most = shared.max(axis=1, initial=0)
        top = shared.max(axis=0, initial=0)
        best_map[top > best], best = number, np.maximum(best, top)
        out = np.zeros((6, rows * columns))
        out[5] = np.where(skipped | (aside & (most <= rules.foreground)), 1, most)
        matches = np.flatnonzero(most > rules.foreground)
        if len(matches):
            nearest = shared[matches].argmax(axis=1)
            out[0, matches] = np.where(objects[nearest, 1] == 0, objects[nearest, 0], 0)
            out[1:3, matches], out[3:5, matches] = middles[nearest].T, sizes[nearest].T
            matched[nearest] = True
        maps.append(out.reshape(6, rows, columns))
    missed = ~matched & (objects[:, 1] == 0) & (best >= rules.pick_up) & (best > 0)
    for i in np.flatnonzero(missed):
        out, stride = maps[best_map[i]], rules.fields[best_map[i]][2]
        last_cell = (out.shape[2] - 1, out.shape[1] - 1)
        x, y = np.clip(np.floor(middles[i] / stride), 0, last_cell).astype(int)
        if out[0, y, x] <= 0:
            out[:5, y, x] = objects[i, 0], *middles[i], *sizes[i]
            if not rules.edges:
                out[5, y, x] = best[i]
    return maps


def _off_image(
    fields: np.ndarray, inside: Shape, extents: Shape, stride: int, half: np.ndarray, rules: Rules
) -> np.ndarray:
    """Which cells lie outside of the image, or have fields that reach too far beyond it."""
    x, y, wide, high = inside
    left, up, across, down = (whole(side / stride) for side in inside)
    row, column = np.mgrid[: extents[0], : extents[1]].reshape(2, -1)
    off: np.ndarray = (column < left) | (column >= left + across) | (row < up) | (row >= up + down)
    image = np.array([[x, y, x + wide, y + high]])
    if rules.margin is not None:
        far = rules.margin * half
        off |= (fields[:, :2] < image[:, :2] - far).any(axis=1)
        off |= (fields[:, 2:] >= image[:, 2:] + far).any(axis=1)
    elif rules.least_inside is not None:
        share = anchors.iou(fields, image.astype(float), "IOFU", strict=True)[:, 0]
        off |= share < rules.least_inside
    return off
