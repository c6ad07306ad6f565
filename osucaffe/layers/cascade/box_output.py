"""Owns the layers that make regions of the maps of MS-CNN and Cascade R-CNN's proposal networks.

They compute what zhaoweicai/mscnn's box_output_layer.cpp and zhaoweicai/cascade-rcnn's
box_group_output_layer.cpp do: a map's cell holds scores of a field about its middle, and a box.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .. import anchors
from ..base import Arrays, Shapes, register
from .fields import FieldCodes
from .host_rows import HostRows

NOTHING = [np.array([[0.0, 1, 1, 10, 10]]), np.zeros((1, 6))]
"""The rows that stand for no box at all, as in the forks."""


class FieldOutput(HostRows):
    """Maps of scores and codes -> the best boxes of each image (and, a second top, their scores).

    A subclass tells the candidates of an image.
    """

    tops = (1, 2)
    setting: Any
    images: int
    edge = 0.0
    """How far x2 and y2 are beyond the last pixel: 1 where x2 - x1 is the width."""

    def check_fields(self, field: str) -> Shapes:
        """Read what both types have, and tell the shapes of the tops."""
        self.setting = param = getattr(self.param, field)
        self.check_suppression(param, field)
        self.codes = FieldCodes(self, param, field)
        tops: Shapes = [(1, 5, 1, 1), (1, 6, 1, 1)]
        return tops[: len(self.param.top)]

    def candidates(self, bottom: Arrays, image: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Boxes (x1, y1, x2, y2) and scores of an image, map by map."""
        raise NotImplementedError

    def find(self, bottom: Arrays) -> Arrays:
        rows = [self._best(bottom, image) for image in range(self.images)]
        found = np.concatenate(rows)
        return [found[:, :5], found] if len(found) else NOTHING

    def _best(self, bottom: Arrays, image: int) -> np.ndarray:
        """Rows of image, box and score, best first."""
        parts = zip(*self.candidates(bottom, image), strict=True)
        boxes, scores = (np.concatenate(part) for part in parts)
        order = np.argsort(scores, kind="stable")[::-1]
        if self.setting.max_nms_num:
            order = order[: self.setting.max_nms_num]
        kept = order[
            anchors.suppress(
                boxes[order] - [0, 0, self.edge, self.edge], self.setting.iou_thr,
                self.setting.max_post_nms_num, self.setting.nms_type, whole=not self.edge,
            )
        ]  # fmt: skip
        head = np.full((len(kept), 1), float(image))
        return np.concatenate([head, boxes[kept], scores[kept, None]], axis=1)


@register("BoxOutput")
class BoxOutput(FieldOutput):
    """The best boxes of maps with a field each: scores of classes, then a box's code (MS-CNN)."""

    bottoms = (1, None)
    messages = ("box_output_param", "bbox_reg_param")
    edge = 1.0

    def check(self, bottom: Shapes) -> Shapes:
        tops, param = self.check_fields("box_output_param"), self.param.box_output_param
        for name in ("field_w", "field_h", "downsample_rate"):
            values = getattr(param, name)
            if len(values) != len(bottom) or min(values) < 1:
                self.fail(f"box_output_param.{name}", f"needs {len(bottom)}, one for each bottom")
        for i, shape in enumerate(bottom):
            if len(shape) != 4 or shape[0] != bottom[0][0] or shape[1] < 6:
                self.fail(
                    f"bottom[{i}]",
                    f"has shape {shape}, but must be {bottom[0][0]} x C x H x W, with two classes "
                    "at least, then 4 numbers of a box",
                )
        self.images = bottom[0][0]
        return tops

    def candidates(self, bottom: Arrays, image: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        param = self.param.box_output_param
        for maps, wide, high, stride in zip(
            bottom, param.field_w, param.field_h, param.downsample_rate, strict=True
        ):
            classes = maps[image, :-4]
            scores = (classes[1:].max(axis=0) - classes[0]).reshape(-1)
            boxes = self.codes.decode(maps[image, -4:], (wide, high), stride)
            low = np.maximum(boxes[:, :2], 0)
            extent = np.array([maps.shape[3], maps.shape[2]]) * stride
            size = np.minimum(boxes[:, 2:], extent - low)
            good = (scores >= param.fg_thr) & (size >= param.min_size).all(axis=1)
            yield np.concatenate([low, low + size], axis=1)[good], scores[good]


@register("BoxGroupOutput")
class BoxGroupOutput(FieldOutput):
    """The best boxes of maps with several fields: pairs of probabilities and codes (Cascade R-CNN).

    Of N images and G fields, probabilities are N * G x classes x H x W, codes N * G x 4 x H x W.
    """

    bottoms = (2, None)
    messages = ("box_group_output_param", "bbox_reg_param")

    def check(self, bottom: Shapes) -> Shapes:
        tops = self.check_fields("box_group_output_param")
        self.groups = list(self.param.box_group_output_param.box_group_param)
        if 2 * len(self.groups) != len(bottom):
            self.fail(
                "box_group_output_param.box_group_param",
                f"there are {len(self.groups)}, but {len(bottom)} bottoms: it needs two of each",
            )
        self.images = bottom[0][0] // max(1, len(self.groups[0].field_w))
        for i, group in enumerate(self.groups):
            fields = len(group.field_w)
            if not fields or len(group.field_h) != fields or not group.stride:
                self.fail(
                    "box_group_output_param.box_group_param",
                    "needs as many field_w as field_h, and a stride",
                )
            scores, codes = bottom[2 * i : 2 * i + 2]
            wanted = (self.images * fields, 4, *scores[2:])
            if len(scores) != 4 or scores[0] != wanted[0] or codes != wanted:
                self.fail(
                    f"bottom[{2 * i + 1}]",
                    f"has shape {codes}, but {self.images} images of {fields} fields with "
                    f"probabilities {scores} need {wanted}",
                )
        return tops

    def candidates(self, bottom: Arrays, image: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        param = self.param.box_group_output_param
        for i, group in enumerate(self.groups):
            scores, codes = bottom[2 * i : 2 * i + 2]
            extent = np.array([codes.shape[3], codes.shape[2]]) * group.stride
            for k, field in enumerate(zip(group.field_w, group.field_h, strict=True)):
                place = image * len(group.field_w) + k
                chances = 1 - scores[place, 0].reshape(-1)
                boxes = self.codes.decode(codes[place], field, group.stride)
                low = np.maximum(boxes[:, :2], 0)
                high = np.minimum(boxes[:, :2] + boxes[:, 2:] - 1, extent)
                good = (chances >= param.fg_thr) & (high - low + 1 >= param.min_size).all(axis=1)
                yield np.concatenate([low, high], axis=1)[good], chances[good]
