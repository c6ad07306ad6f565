"""Owns the layers of Cascade R-CNN's stages whose boxes are coded against the regions before them.

They compute what zhaoweicai/cascade-rcnn's decode_bbox_layer.cpp, bbox_accuracy_layer.cpp and
frcnn_output_layer.cpp do, and the first two of zhaoweicai/mscnn. A row of codes has four numbers
for each class, or (`cls_aware: false`) for background and objects.
"""

from __future__ import annotations

import logging

import numpy as np

from .. import anchors
from ..base import Arrays, Shapes, register
from .host_rows import HostRows

_log = logging.getLogger("osucaffe")


class CodedBoxes(HostRows):
    """What these layers share: codes, against regions, by `bbox_reg_param`."""

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
        places = labels if self.param.bbox_reg_param.cls_aware else np.minimum(labels, 1)
        return codes.reshape(len(codes), codes.shape[1] // 4, 4)[np.arange(len(codes)), places]

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
        self.read_regression()
        self.check_rows(bottom, {0: (8,), 1: (5,)})
        if len(bottom) == 3:
            if self.phase != "TRAIN":
                self.fail("bottom[2]", "is for training only")
            self.check_rows(bottom, {2: (6,)})
        return [bottom[1]]

    def find(self, bottom: Arrays) -> Arrays:
        codes, regions, *matches = (each.reshape(len(each), -1) for each in bottom)
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
        self.read_regression()
        self.check_codes(bottom, 0)
        self.check_rows(bottom, {1: (5,), 2: (6,)})
        return [(1, 1, 1, 1)] * len(self.param.top)

    def find(self, bottom: Arrays) -> Arrays:
        codes, regions, matches = (each.reshape(len(each), -1) for each in bottom)
        counted = (matches[:, 0] > 0) & (matches[:, -1] <= 0.975)
        codes, regions, matches = codes[counted], regions[counted, 1:], matches[counted]
        labels = matches[:, 0].astype(int)
        boxes = self.decoded(regions, self.codes_of(codes, labels))
        return [
            np.full((1, 1), self._mean_overlap(each, matches[:, 1:5]))
            for each in (boxes, regions)
        ]  # fmt: skip

    @staticmethod
    def _mean_overlap(boxes: np.ndarray, truths: np.ndarray) -> float:
        pairs = zip(boxes[:, None], truths[:, None], strict=True)
        found = [float(anchors.overlaps(box, truth)[0, 0]) for box, truth in pairs]
        return float(np.mean(found)) if found else -1.0


@register("FrcnnOutput")
class FrcnnOutput(CodedBoxes):
    """The boxes to report of one image: probabilities, codes, rois, height and width -> rows of 7.

    A row holds image, x1, y1, x2, y2, label and confidence; the first stands for no box.
    """

    bottoms = (4, 4)
    messages = ("frcnn_output_param", "bbox_reg_param")

    def check(self, bottom: Shapes) -> Shapes:
        param = self.param.frcnn_output_param
        self.read_regression()
        self.check_suppression(param, "frcnn_output_param")
        self.check_codes(bottom, 1)
        self.check_rows(bottom, {2: (5, 6)})
        if self.param.bbox_reg_param.cls_aware and np.prod(bottom[1][1:]) != 4 * bottom[0][1]:
            self.fail("bottom[1]", f"has shape {bottom[1]}: bottom[0], {bottom[0]}, needs four "
                      "numbers for each class")  # fmt: skip
        if np.prod(bottom[3]) != 2:
            self.fail("bottom[3]", f"has shape {bottom[3]}, but must be 1 x 2: height, width")
        if param.save_output_param.output_directory:
            _log.warning(
                "%s, frcnn_output_param.save_output_param: writes no files while the net runs",
                self.title,
            )
        return [(1, 7, 1, 1)]

    def find(self, bottom: Arrays) -> Arrays:
        param = self.param.frcnn_output_param
        chances, codes, regions = (each.reshape(len(each), -1) for each in bottom[:3])
        height, width = bottom[3].reshape(-1)
        found = []
        for label in range(1, chances.shape[1]):
            order = np.argsort(-chances[:, label], kind="stable")
            order = order[chances[order, label] >= param.conf_thr]
            own = self.codes_of(codes[order], np.full(len(order), label))
            boxes = self.decoded(regions[order, 1:5], own)
            boxes[:, :2] = np.maximum(boxes[:, :2], 0)
            boxes[:, 2:] = np.minimum(boxes[:, 2:], [width, height])
            kept = anchors.suppress(boxes, param.iou_thr, of=param.nms_type, whole=True)
            rows = np.zeros((len(kept), 7))
            rows[:, 1:5], rows[:, 5] = boxes[kept], label
            rows[:, 6] = chances[order[kept], label]
            found.append(rows)
        rows = np.concatenate(found)
        if param.max_det_num:
            best = np.argsort(-rows[:, 6], kind="stable")[: param.max_det_num]
            rows = rows[np.sort(best)]
        return [np.concatenate([[[0, *[-1] * 6]], rows])]
