"""Owns how MS-CNN and Cascade R-CNN code boxes on maps: against a field about each cell's middle.

A code is the middle's shift in proportion to the field, and the logarithms of the growth,
normalized by `bbox_reg_param` and bounded by field_xyr and field_whr.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base import Layer, Shapes


def read_regression(layer: Layer) -> tuple[np.ndarray, np.ndarray]:
    """The means and standard deviations that box codes were normalized by."""
    param = layer.param.bbox_reg_param
    if not (param.bbox_mean and param.bbox_std):
        return np.zeros(4), np.ones(4)
    if len(param.bbox_mean) != 4 or len(param.bbox_std) != 4 or min(param.bbox_std) <= 0:
        layer.fail("bbox_reg_param", "needs four of bbox_mean and four of bbox_std, above 0")
    return np.array(param.bbox_mean), np.array(param.bbox_std)


def check_fields(layer: Layer, name: str, fields: list[tuple[int, int]], stride: int) -> None:
    """Refuse a message without fields, or without a stride, and classes that cannot be."""
    param = getattr(layer.param, name)
    if not fields or min(map(min, fields)) < 1 or stride < 1:
        layer.fail(name, "needs as many field_w as field_h, and how many pixels a cell has")
    if param.cls_num < 2 or (param.objectness and param.cls_num != 2):
        layer.fail(f"{name}.cls_num", "must be at least 2, and 2 where objectness is true")


def check_maps(layer: Layer, bottom: Shapes, channels: Sequence[int], fields: int = 1) -> None:
    """Refuse bottoms that are not maps of so many channels, alike in all else, for the fields."""
    for i, (shape, count) in enumerate(zip(bottom, channels, strict=True)):
        wanted = (bottom[0][0], count, *bottom[0][2:])
        if shape != wanted or len(shape) != 4:
            layer.fail(f"bottom[{i}]", f"has shape {shape}, but must have {wanted}")
    if bottom[0][0] % fields:
        layer.fail("bottom[0]", f"has shape {bottom[0]}: it needs a multiple of {fields} fields")


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
        middle = _middles(codes, stride).reshape(2, -1).T
        middle = middle + np.array(field) * np.clip(rows[:, :2], -self.shift, self.shift)
        return np.concatenate([middle - size / 2, size], axis=1)

    def encode(self, boxes: np.ndarray, field: Sequence[float], stride: int) -> np.ndarray:
        """The codes (4, H, W) of a map of boxes: their middles' x and y, width, height."""
        extent = np.array(field).reshape(2, 1, 1)
        shift = (boxes[:2] - _middles(boxes, stride)) / extent
        codes = np.concatenate([shift, np.log(np.maximum(boxes[2:], 2) / extent)])
        return (codes - self.mean[:, None, None]) / self.deviation[:, None, None]

    def bounds(self) -> dict[str, float]:
        """What normalized codes are bounded by, as the losses take it: the axes share theirs."""
        found = {}
        for name, limit, part in (
            ("shift", self.shift, slice(2)),
            ("growth", self.growth, slice(2, 4)),
        ):
            mean, deviation = self.mean[part].mean(), math.sqrt(self.deviation[part].prod())
            found[f"least_{name}"] = float((-limit - mean) / deviation)
            found[f"most_{name}"] = float((limit - mean) / deviation)
        return found


def _middles(maps: np.ndarray, stride: int) -> np.ndarray:
    """x and y of the middles of the cells (2, H, W)."""
    y, x = np.mgrid[: maps.shape[1], : maps.shape[2]]
    return (np.stack([x, y]) + 0.5) * stride
