"""Owns how well the proposal networks of MS-CNN and Cascade R-CNN do, cell by cell.

The host computes what zhaoweicai/mscnn's detection_accuracy_layer.cpp (on the host there, too) and
zhaoweicai/cascade-rcnn's detection_group_accuracy_layer.cpp do, of truth as proposal_losses.py has
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import anchors
from ..base import Blobs, Layer, Program, Shapes, register
from ..core.softmax import read_ignored
from .fields import FieldCodes, check_fields, check_maps


class FieldAccuracy(Layer):
    """The share of right labels and, of objects, theirs (a second top: their boxes' overlap).

    Cells without an object that overlap one by bg_threshold do not count. -1: nothing to count.
    """

    tops = (1, 2)
    gives_none = (0, 1)
    setting: Any
    fields: list[tuple[int, int]]
    stride: int
    whole = False

    def read(self, name: str, fields: list[tuple[int, int]], stride: int) -> Shapes:
        """Read what both types have, of the message of this name; the shapes of the tops."""
        self.setting = getattr(self.param, name)
        self.fields, self.stride = fields, stride
        check_fields(self, name, fields, stride)
        self.codes = FieldCodes(self, self.setting, name)
        self.ignored = read_ignored(self.param.loss_param)
        tops: Shapes = [(1, 1, 1, 2), (1, 1, 1, 1)]
        return tops[: len(self.param.top)]

    def parts(self, bottom: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Scores and boxes' codes."""
        raise NotImplementedError

    def right(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Whether the scores (N, C, H, W) tell these labels (N, H, W)."""
        raise NotImplementedError

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        bottom[-1].keep_exact()  # in 16 bits objects would stand elsewhere
        reads = [self.tensor(blob.shape) for blob in bottom]  # row-major, as the host wants them
        for blob, own in zip(bottom, reads, strict=True):
            program.copy(blob.data, own)
        program.host(reads, [blob.data for blob in top], function=self._run)

    def _run(self, reads: list[np.ndarray], writes: list[np.ndarray]) -> None:
        (scores, codes), truth = self.parts(reads), reads[-1]
        labels = truth[:, 0].astype(int)
        shown = np.minimum(labels, 1) if self.setting.objectness else labels
        counted = (shown != self.ignored) & (
            (shown != 0) | (truth[:, 5] < self.setting.bg_threshold)
        )
        right = self.right(scores, shown)
        writes[0].flat[:] = [_mean(right[counted]), _mean(right[counted & (shown != 0)])]
        if len(writes) > 1:
            objects = (labels != 0) & (labels != self.ignored)
            writes[1].flat[:] = _mean(self._overlaps(codes, truth, objects))

    def _overlaps(self, codes: np.ndarray, truth: np.ndarray, objects: np.ndarray) -> np.ndarray:
        """Of the boxes with those of the objects, where there are any."""
        found = []
        for i, own in enumerate(objects.reshape(len(objects), -1)):
            boxes = self.codes.decode(codes[i], self.fields[i % len(self.fields)], self.stride)
            for (x, y, w, h), (cx, cy, wide, high) in zip(
                boxes[own], truth[i, 1:5].reshape(4, -1).T[own].astype(np.float64), strict=True
            ):
                pair = np.array([[x, y, w, h], [cx - wide / 2, cy - high / 2, wide, high]])
                pair[:, 2:] += pair[:, :2] - 1
                found.append(anchors.overlaps(pair[:1], pair[1:], whole=self.whole)[0, 0])
        return np.array(found)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else -1.0


@register("DetectionAccuracy")
class DetectionAccuracy(FieldAccuracy):
    """How well maps of one field do: N x classes + 4 x H x W, and truth (MS-CNN)."""

    bottoms = (2, 2)
    no_gradient = (0, 1)
    messages = ("detection_accuracy_param", "bbox_reg_param", "loss_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param, name = self.param.detection_accuracy_param, "detection_accuracy_param"
        tops = self.read(name, [(param.field_w, param.field_h)], param.downsample_rate)
        if param.coord_num != 4:
            self.fail(f"{name}.coord_num", "must be 4")
        if not 1 <= param.top_k <= param.cls_num:
            self.fail(f"{name}.top_k", f"is {param.top_k}: it must be 1 .. {param.cls_num} classes")
        check_maps(self, bottom, (param.cls_num + 4, 6))
        return tops

    def parts(self, bottom: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return bottom[0][:, :-4], bottom[0][:, -4:]

    def right(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        own = np.take_along_axis(scores, labels[:, None], axis=1)
        place = np.arange(scores.shape[1]).reshape(1, -1, 1, 1)
        # Of scores that are alike the class of the greater number comes first.
        before = (scores > own) | ((scores == own) & (place > labels[:, None]))
        return before.sum(axis=1) < self.setting.top_k


@register("DetectionGroupAccuracy")
class DetectionGroupAccuracy(FieldAccuracy):
    """How well maps of several fields do: scores, boxes and truth (Cascade R-CNN)."""

    bottoms = (3, 3)
    no_gradient = (0, 1, 2)
    messages = ("detection_group_accuracy_param", "bbox_reg_param", "loss_param")
    whole = True

    def setup(self, bottom: Shapes) -> Shapes:
        param, name = self.param.detection_group_accuracy_param, "detection_group_accuracy_param"
        if len(param.field_w) != len(param.field_h):
            self.fail(f"{name}.field_h", "must be as many as field_w")
        fields = list(zip(param.field_w, param.field_h, strict=True))
        tops = self.read(name, fields, param.stride)
        check_maps(self, bottom, (param.cls_num, 4, 6), len(fields))
        return tops

    def parts(self, bottom: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        return bottom[0], bottom[1]

    def right(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return scores.argmax(axis=1) == labels
