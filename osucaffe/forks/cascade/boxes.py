"""The layers that make boxes: of the maps of MS-CNN and Cascade R-CNN's proposal networks, and
of codes against the regions of the stage before.

They compute what zhaoweicai/mscnn's box_output_layer.cpp (a map's cell holds scores of a field
about its middle, and a box), zhaoweicai/cascade-rcnn's box_group_output_layer.cpp,
decode_bbox_layer.cpp, bbox_accuracy_layer.cpp and frcnn_output_layer.cpp do. A row of codes has
four numbers for each class, or (`cls_aware: false`) for background and objects.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...layers.base import Arrays, Shapes, register
from .. import anchors
from ..rows import HostRows
from .fields import FieldCodes, check_suppression, mean, read_regression

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
        check_suppression(self, param, field)
        self.codes = FieldCodes(self, param, field)
        tops: Shapes = [(1, 5, 1, 1), (1, 6, 1, 1)]
        return tops[: len(self.param.top)]

    def candidates(self, bottom: Arrays, image: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Boxes (x1, y1, x2, y2) and scores of an image, map by map."""
        raise NotImplementedError

    def compute(self, bottom: Arrays) -> Arrays:
        rows = [self._best(bottom, image) for image in range(self.images)]
        outputs = np.concatenate(rows)
        return [outputs[:, :5], outputs] if len(outputs) else NOTHING

    def _best(self, bottom: Arrays, image: int) -> np.ndarray:
        """Rows of image, box and score, best first."""
        param, parts = self.setting, zip(*self.candidates(bottom, image), strict=True)
        boxes, scores = (np.concatenate(part) for part in parts)
        order = np.argsort(scores, kind="stable")[::-1][: param.max_nms_num or None]
        selected = order[anchors.nms(
            boxes[order] - [0, 0, self.edge, self.edge], param.iou_thr, param.max_post_nms_num,
            param.nms_type, strict=not self.edge,
        )]  # fmt: skip
        return np.column_stack(
            [np.full(len(selected), float(image)), boxes[selected], scores[selected]]
        )


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
        self.images = bottom[0][0]
        for i, shape in enumerate(bottom):
            if len(shape) != 4 or shape[0] != self.images or shape[1] < 6:
                text = f"{self.images} x C x H x W: two classes at least, then 4 numbers of a box"
                self.fail(f"bottom[{i}]", f"has shape {shape}, but must be {text}")
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
        name = "box_group_output_param.box_group_param"
        if 2 * len(self.groups) != len(bottom):
            counts = f"{len(self.groups)}, but {len(bottom)} bottoms"
            self.fail(name, f"there are {counts}: it needs two of each")
        self.images = bottom[0][0] // max(1, len(self.groups[0].field_w))
        for i, group in enumerate(self.groups):
            fields = len(group.field_w)
            if not fields or len(group.field_h) != fields or not group.stride:
                self.fail(name, "needs as many field_w as field_h, and a stride")
            scores, like = bottom[2 * i], f": {self.images} images of {fields} fields"
            self.check_axes(scores, field=f"bottom[{2 * i}]")
            self.check_bottom(bottom, 2 * i, (self.images * fields, *scores[1:]), like)
            self.check_bottom(bottom, 2 * i + 1, (scores[0], 4, *scores[2:]), like)
        return tops

    def candidates(self, bottom: Arrays, image: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        param = self.param.box_group_output_param
        for i, group in enumerate(self.groups):
            scores, codes = bottom[2 * i : 2 * i + 2]
            extent = np.array([codes.shape[3], codes.shape[2]]) * group.stride
            for k, field in enumerate(zip(group.field_w, group.field_h, strict=True)):
                index = image * len(group.field_w) + k
                chances = 1 - scores[index, 0].reshape(-1)
                boxes = self.codes.decode(codes[index], field, group.stride)
                low = np.maximum(boxes[:, :2], 0)
                high = np.minimum(boxes[:, :2] + boxes[:, 2:] - 1, extent)
                good = (chances >= param.fg_thr) & (high - low + 1 >= param.min_size).all(axis=1)
                yield np.concatenate([low, high], axis=1)[good], chances[good]


_log = logging.getLogger("osucaffe")


class CodedBoxes(HostRows):
    """What these layers share: codes, against regions, by `bbox_reg_param`."""

    mean: np.ndarray
    deviation: np.ndarray

    def check_codes(self, bottom: Shapes, position: int) -> None:
        """Refuse a bottom that is not rows of codes."""
        numbers = int(np.prod(bottom[position][1:]))
        if numbers < 8 or numbers % 4 or (not self.param.bbox_reg_param.cls_aware and numbers > 8):
            self.fail(
                f"bottom[{position}]",
                f"has shape {bottom[position]}, but must be N x 4 numbers for each class (8 where "
                "bbox_reg_param.cls_aware is false)",
            )
        self.check_rows(bottom, {position: (numbers,)})

    def codes_of(self, codes: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Of each row (N, numbers) the four numbers of its label."""
        classes = labels if self.param.bbox_reg_param.cls_aware else np.minimum(labels, 1)
        return codes.reshape(len(codes), codes.shape[1] // 4, 4)[np.arange(len(codes)), classes]

    def decoded(self, regions: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Boxes x1, y1, x2, y2 (N, 4), their last pixels included, as the regions are."""
        boxes = anchors.decode(regions.astype(np.float64), codes * self.deviation + self.mean)
        # The middle of x1 ... x2 is a half less than that of the x1 ... x2 + 1 of `decode`.
        return boxes - [0, 0, 1, 1]


@register("DecodeBBox")
class DecodeBBox(CodedBoxes):
    """Regions as their codes change them, for the next stage: codes (N, 8), rois -> rois.

    In training without those whose box is none, and those that match an object too well (a third
    bottom, of ProposalTarget, tells by how much).
    """

    bottoms = (2, 3)
    messages = ("decode_bbox_param", "bbox_reg_param")

    def check(self, bottom: Shapes) -> Shapes:
        self.mean, self.deviation = read_regression(self)
        self.check_rows(bottom, {0: (8,), 1: (5,)})
        if len(bottom) == 3:
            if self.phase != "TRAIN":
                self.fail("bottom[2]", "is for training only")
            self.check_rows(bottom, {2: (6,)})
        return [bottom[1]]

    def compute(self, bottom: Arrays) -> Arrays:
        codes, regions, *matches = (array.reshape(len(array), -1) for array in bottom)
        boxes = self.decoded(regions[:, 1:], codes[:, 4:])
        rows = np.concatenate([regions[:, :1], boxes], axis=1)
        if self.phase != "TRAIN":
            return [rows]
        good = (boxes[:, :2] <= boxes[:, 2:]).all(axis=1)
        for match in matches:
            good &= match[:, -1] < self.param.decode_bbox_param.gt_iou_thr
        return [rows[good] if good.any() else regions[:1]]  # where the fork stops


@register("BboxAccuracy")
class BboxAccuracy(CodedBoxes):
    """How well boxes match their objects: codes, rois, ProposalTarget's matches -> mean overlaps.

    The overlap of the coded boxes and, a second top, that of the regions. Regions that match by
    more than 0.975, objects themselves say, do not count; without any that does it is -1.
    """

    bottoms = (3, 3)
    tops = (1, 2)
    messages = ("bbox_reg_param",)

    def check(self, bottom: Shapes) -> Shapes:
        self.mean, self.deviation = read_regression(self)
        self.check_codes(bottom, 0)
        self.check_rows(bottom, {1: (5,), 2: (6,)})
        return [(1, 1, 1, 1)] * len(self.param.top)

    def compute(self, bottom: Arrays) -> Arrays:
        codes, regions, matches = (array.reshape(len(array), -1) for array in bottom)
        counted = (matches[:, 0] > 0) & (matches[:, -1] <= 0.975)
        codes, regions, matches = codes[counted], regions[counted, 1:], matches[counted]
        labels = matches[:, 0].astype(int)
        boxes = self.decoded(regions, self.codes_of(codes, labels))
        overlaps = [anchors.paired_iou(array, matches[:, 1:5]) for array in (boxes, regions)]
        return [np.full((1, 1), mean(array)) for array in overlaps]


@register("FrcnnOutput")
class FrcnnOutput(CodedBoxes):
    """The boxes to report of one image: probabilities, codes, rois, height and width -> rows of 7.

    A row holds image, x1, y1, x2, y2, label and confidence; the first stands for no box.
    """

    bottoms = (4, 4)
    messages = ("frcnn_output_param", "bbox_reg_param")

    def check(self, bottom: Shapes) -> Shapes:
        param = self.param.frcnn_output_param
        self.mean, self.deviation = read_regression(self)
        check_suppression(self, param, "frcnn_output_param")
        self.check_codes(bottom, 1)
        self.check_rows(bottom, {2: (5, 6)})
        if self.param.bbox_reg_param.cls_aware and np.prod(bottom[1][1:]) != 4 * bottom[0][1]:
            text = f"has shape {bottom[1]}: bottom[0], {bottom[0]}, needs four numbers for a class"
            self.fail("bottom[1]", text)
        self.check_count(bottom, 3, 2, like=": height, width")
        if param.save_output_param.output_directory:
            _log.warning(
                "%s, frcnn_output_param.save_output_param: writes no files while the net runs",
                self.title,
            )
        return [(1, 7, 1, 1)]

    def compute(self, bottom: Arrays) -> Arrays:
        param = self.param.frcnn_output_param
        chances, codes, regions = (array.reshape(len(array), -1) for array in bottom[:3])
        height, width = bottom[3].reshape(-1)
        outputs = []
        for label in range(1, chances.shape[1]):
            order = np.argsort(-chances[:, label], kind="stable")
            order = order[chances[order, label] >= param.conf_thr]
            label_codes = self.codes_of(codes[order], np.full(len(order), label))
            boxes = self.decoded(regions[order, 1:5], label_codes)
            boxes[:, :2] = np.maximum(boxes[:, :2], 0)
            boxes[:, 2:] = np.minimum(boxes[:, 2:], [width, height])
            selected = anchors.nms(boxes, param.iou_thr, of=param.nms_type, strict=True)
            image, labels = np.zeros(len(selected)), np.full(len(selected), label)
            outputs.append(
                np.column_stack([image, boxes[selected], labels, chances[order[selected], label]])
            )
        rows = np.concatenate(outputs)
        if param.max_det_num:
            best = np.argsort(-rows[:, 6], kind="stable")[: param.max_det_num]
            rows = rows[np.sort(best)]
        return [np.concatenate([[[0, *[-1] * 6]], rows])]
