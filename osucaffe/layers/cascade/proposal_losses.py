"""Owns the losses of MS-CNN and Cascade R-CNN's proposal networks: which cells count in them.

They compute what zhaoweicai/mscnn's detection_loss_layer.cpp and zhaoweicai/cascade-rcnn's
detection_group_loss_layer.cpp do.
"""

from __future__ import annotations

import math

import numpy as np

from ..backends.primitives import Program
from ..backends.tensor import Shape
from ..blob import Blob
from .base import register
from .field_losses import FieldLoss
from .fields import check_maps

UNBOUNDED = {"least_shift": -1e30, "most_shift": 1e30, "least_growth": -1e30, "most_growth": 1e30}


def _best(places: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
    """So many of the places, those with the highest scores."""
    return places[np.argsort(-scores[places], kind="stable")[:count]]


@register("DetectionLoss")
class DetectionLoss(FieldLoss):
    """The loss of maps of scores and boxes, N x classes + 4 x H x W, of one field (MS-CNN)."""

    messages = ("detection_loss_param", "bbox_reg_param", "loss_param")
    no_gradient = (1,)

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param = self.param.detection_loss_param
        self.read("detection_loss_param", [(param.field_w, param.field_h)], param.downsample_rate)
        if param.coord_num != 4:
            self.fail("detection_loss_param.coord_num", "must be 4")
        check_maps(self, bottom, (param.cls_num + 4, 6))
        self.smooth = param.bb_smooth
        count, _, *extent = bottom[0]
        self.shapes = [(count, channels, *extent) for channels in (param.cls_num, 4)]
        return [(1, 1, 1, 2)]

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        bottom[1].keep_exact()  # in 16 bits objects would stand elsewhere
        conf, box = parts = [self.tensor(shape) for shape in self.shapes]
        program.split(bottom[0].data, parts, axis=1)
        self.record_losses(program, conf, box, bottom[1].data, top[0])

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        if propagate_down[0]:
            parts = [self.tensor(shape) for shape in self.shapes]
            self.record_gradients(program, top[0], *parts)
            program.concat(parts, bottom[0].diff, axis=1)

    def choose(self, scores: np.ndarray, labels: np.ndarray, overlap: np.ndarray) -> np.ndarray:
        free = (labels == 0) & (overlap < self.setting.bg_threshold)
        kept = [self._of_image(*each) for each in zip(scores, labels, free, strict=True)]
        return np.array(kept) | (labels != 0)

    def _of_image(self, scores: np.ndarray, labels: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Which cells without an object count."""
        param, chosen = self.setting, np.zeros(len(labels), bool)
        shown = np.minimum(labels, 1) if param.objectness else labels
        share = param.bg_multiple * (0.5 if param.sample_mode == "mixture" else 1.0)
        if param.sample_mode in ("random", "mixture"):
            count = max(int((labels != 0).sum() * share), 4 * (param.cls_num - 1))
            chosen[self.random.integers(len(labels), size=count)] = True
        if param.sample_mode in ("bootstrap", "mixture"):
            for k in range(1, param.cls_num):
                count = max(4, int((shown == k).sum() * share))
                chosen[_best(np.flatnonzero(free), scores[k], count)] = True
        elif param.sample_mode != "random":
            chosen[:] = True
        return chosen & free


@register("DetectionGroupLoss")
class DetectionGroupLoss(FieldLoss):
    """The loss of scores, boxes and truth of several fields, N * fields x ... (Cascade R-CNN)."""

    bottoms = (3, 3)
    messages = ("detection_group_loss_param", "bbox_reg_param", "loss_param")
    no_gradient = (2,)
    weighs_background = ranks_probabilities = True

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param, name = self.param.detection_group_loss_param, "detection_group_loss_param"
        if len(param.field_w) != len(param.field_h):
            self.fail(f"{name}.field_h", "must be as many as field_w")
        self.read(name, list(zip(param.field_w, param.field_h, strict=True)), param.stride)
        if not (param.HasField("field_xyr") and param.HasField("field_whr")):
            self.bounds = UNBOUNDED
        check_maps(self, bottom, (param.cls_num, 4, 6), len(self.fields))
        for field, known in (
            ("bbox_loss_type", ("Smooth_L1", "Euclidean_L2")),
            ("neg_mining_type", ("random", "bootstrap", "mixture")),
            ("neg_ranking_type", ("conf_loss", "conf_prob")),  # which rank cells alike
        ):
            if getattr(param, field) not in known:
                self.fail(f"{name}.{field}", f"must be {' or '.join(known)}")
        if param.batch_size < 1 and param.batch_size != -1:
            self.fail(f"{name}.batch_size", "must be above 0, or -1: as many as there are")
        self.smooth = param.bbox_loss_type == "Smooth_L1"
        return [(1, 1, 1, 2)]

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        bottom[2].keep_exact()
        conf, box, truth = (blob.data for blob in bottom)
        self.record_losses(program, conf, box, truth, top[0])

    def backward(
        self, program: Program, top: list[Blob], propagate_down: list[bool], bottom: list[Blob]
    ) -> None:
        conf, box = (
            blob.diff if wanted else None
            for blob, wanted in zip(bottom[:2], propagate_down[:2], strict=True)
        )
        self.record_gradients(program, top[0], conf, box)

    def choose(self, scores: np.ndarray, labels: np.ndarray, overlap: np.ndarray) -> np.ndarray:
        images = len(labels) // len(self.fields)
        free = (labels == 0) & (overlap < self.setting.bg_threshold)
        parts = (each.reshape(images, -1) for each in (-scores[:, 0], labels, free))
        kept = [self._of_image(*each) for each in zip(*parts, strict=True)]
        return np.reshape(kept, labels.shape)

    def _of_image(self, scores: np.ndarray, labels: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Which cells of all fields count: objects, and cells without one."""
        param = self.setting
        objects, others = np.flatnonzero(labels > 0), np.flatnonzero(free)
        if param.batch_size < 0:
            most, count = len(objects), max(len(objects) * param.bg_multiple, param.min_num_neg)
        else:
            most = math.floor(param.batch_size / (1 + param.bg_multiple) + 0.5)
            count = param.batch_size - min(most, len(objects))
        chosen = np.zeros(len(labels), bool)
        chosen[self._some(objects, most)] = True
        count = min(count, len(others))
        hard = {"random": 0, "bootstrap": count, "mixture": math.floor(count * 0.5 + 0.5)}
        best = _best(others, scores, hard[param.neg_mining_type])
        chosen[best] = True
        chosen[self._some(np.setdiff1d(others, best), count - len(best))] = True
        return chosen

    def _some(self, places: np.ndarray, count: int) -> np.ndarray:
        if len(places) <= count:
            return places
        return self.random.choice(places, count, replace=False)
