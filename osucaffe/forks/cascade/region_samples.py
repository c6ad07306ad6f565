"""The layers that choose among regions while MS-CNN and Cascade R-CNN train.

They compute what zhaoweicai/cascade-rcnn's proposal_target_layer.cpp, hard_mining_layer.cpp and
scale_route_layer.cpp do, and the first of zhaoweicai/mscnn.
"""

from __future__ import annotations

import math

import numpy as np

from ...layers.base import Arrays, Shapes, register
from .. import anchors
from ..rows import HostRows
from .fields import read_regression


@register("ProposalTarget")
class ProposalTarget(HostRows):
    """A sample of rois (and of gt boxes) -> rois, labels, targets, weights twice, matches.

    A row of gt boxes holds image (-1: none), x1, y1, x2, y2, label, whether it is ignored, and
    (Cascade R-CNN) whether it is difficult. A match is label, x1, y1, x2, y2 and overlap. A seventh
    top weighs the rows for a softmax loss.
    """

    bottoms = (2, 2)
    tops = (6, 7)
    messages = ("proposal_target_param", "bbox_reg_param")
    passes = 0

    def check(self, bottom: Shapes) -> Shapes:
        param = self.param.proposal_target_param
        self.mean, self.deviation = read_regression(self)
        self.check_rows(bottom, {0: (5,)})
        self.cascade = math.prod(bottom[1][1:]) == 8
        if not self.cascade and math.prod(bottom[1][1:]) != 7:
            self.fail("bottom[1]", f"has shape {bottom[1]}, but must be N x 7 or N x 8")
        if param.cls_num < 2:
            self.fail("proposal_target_param.cls_num", "must be at least 2, with the background")
        if param.batch_size < 1 and param.batch_size != -1:
            self.fail("proposal_target_param.batch_size", "must be above 0, or -1: all there are")
        if param.fg_thr < param.bg_thr_hg:
            self.fail("proposal_target_param.fg_thr", "must not be below bg_thr_hg")
        rows = bottom[0][0] if param.batch_size < 0 else param.batch_size
        self.classes = param.cls_num if self.param.bbox_reg_param.cls_aware else 2
        wide = (rows, 4 * self.classes, 1, 1)
        one = (rows, 1, 1, 1)
        tops: Shapes = [(rows, 5, 1, 1), one, wide, wide, wide, (rows, 6, 1, 1), one]
        return tops[: len(self.param.top)]

    def compute(self, bottom: Arrays) -> Arrays:
        param = self.param.proposal_target_param
        self.random = np.random.default_rng([self.seed, self.key, self.passes])
        self.passes += 1
        rois, ground_truths = (array.reshape(len(array), -1).astype(np.float64) for array in bottom)
        ground_truths = ground_truths[ground_truths[:, 0] >= 0]
        if param.append_gtbox:
            rois = np.concatenate([rois, ground_truths[:, :5]])
        near = self._iou(rois, ground_truths)
        matched, best = near.argmax(axis=1), near.max(axis=1)
        best[best < 0] = 0  # no object in its image
        objects, others = self._sampled(
            best, ground_truths[matched, 6] > 0 if len(ground_truths) else best > 1
        )
        chosen = np.concatenate([objects, others])
        rois, matched, best = rois[chosen], matched[chosen], best[chosen]
        spare = self._spare(len(chosen), ground_truths)
        rows = np.zeros((len(rois) + len(spare), 6))
        positives = len(objects)
        rows[:positives, 0] = ground_truths[matched[:positives], 5]
        rows[:positives, 1:5] = ground_truths[matched[:positives], 1:5]
        rows[:positives, 5] = best[:positives]
        rois = np.concatenate([rois, spare])
        return [rois, rows[:, :1], *self._targets(rois, rows, positives), rows, self._weights(rows)]

    def _iou(self, rois: np.ndarray, ground_truths: np.ndarray) -> np.ndarray:
        """Of rois with objects: -1 where they are of other images; a last column of no object."""
        near = anchors.iou(rois[:, 1:], ground_truths[:, 1:5], strict=self.cascade)
        near[rois[:, :1] != ground_truths[None, :, 0]] = -1
        return np.pad(near, ((0, 0), (0, 0 if len(ground_truths) else 1)), constant_values=-1)

    def _sampled(self, best: np.ndarray, ignored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which rois are objects, and which are none, by their overlaps."""
        param = self.param.proposal_target_param
        objects = np.flatnonzero((best >= param.fg_thr) & ~ignored)
        background = (best >= param.bg_thr_lw) & (best < param.bg_thr_hg)
        others = np.flatnonzero(background)
        count, most = len(objects) + len(others), len(objects)
        if param.batch_size > 0:
            count, most = param.batch_size, math.floor(param.fg_fraction * param.batch_size + 0.5)
        objects = anchors.sample(self.random, objects, most)
        left = count - len(objects)
        if len(others) <= left and param.pickup_discard:
            rest = np.flatnonzero((best < param.fg_thr) & ~background)
            others = np.concatenate([others, rest[: left - len(others)]])
        return objects, anchors.sample(self.random, others, left)

    def _spare(self, count: int, ground_truths: np.ndarray) -> np.ndarray:
        """Random rois of no object: one where there is none else; in MS-CNN's, what is missing."""
        param = self.param.proposal_target_param
        missing = int(count == 0) if self.cascade else max(param.batch_size - count, int(not count))
        spare: list[np.ndarray] = []
        extent = np.maximum([param.img_width, param.img_height], 33)
        while len(spare) < missing:
            low = self.random.integers(0, extent - 32)
            size = np.maximum(self.random.integers(0, extent - low), 32)
            image = self.random.integers(param.num_img_per_batch)
            roi = np.concatenate([[image], low, low + size - 1])[None].astype(np.float64)
            if self._iou(roi, ground_truths).max() < param.fg_thr:
                spare.append(roi)
        return np.concatenate(spare) if spare else np.zeros((0, 5))

    def _targets(self, rois: np.ndarray, rows: np.ndarray, positives: int) -> Arrays:
        """What the boxes of the first rows are to become, at their classes, and weights twice."""
        param = self.param.proposal_target_param
        targets, weights = (np.zeros((len(rois), self.classes, 4)) for _ in range(2))
        classes = np.minimum(rows[:positives, 0].astype(int), self.classes - 1)
        codes = anchors.encode(rois[:positives, 1:], rows[:positives, 1:5])
        targets[np.arange(positives), classes] = (codes - self.mean) / self.deviation
        counts = (rows[:positives, 5] >= param.bbox_thr_lw) & (
            rows[:positives, 5] <= param.bbox_thr_hg
        )
        weights[np.arange(positives), classes] = counts[:, None]
        return [targets, weights, weights]

    def _weights(self, rows: np.ndarray) -> np.ndarray:
        """Of rows, such that objects have fg_fraction of all weights."""
        param = self.param.proposal_target_param
        objects = rows[:, 0] > 0
        weights = np.where(objects & param.iou_weighted, rows[:, 5], 1.0)
        total = weights[objects].sum()
        if total:
            weights[objects] *= param.fg_fraction * len(rows) / total
            weights[~objects] *= (1 - param.fg_fraction) * len(rows) / max(1, (~objects).sum())
        return weights


@register("HardMining")
class HardMining(HostRows):
    """The rows of the greatest losses in each image: loss, rois, rows ... -> rois, rows ... ."""

    bottoms = (2, None)
    tops = (1, None)

    def check(self, bottom: Shapes) -> Shapes:
        param = self.param.hard_mining_param
        self.check_positive("hard_mining_param", "num_roi_per_image", "num_image")
        self.check_rows(bottom, {0: (1,), 1: (5,)})
        self.check_selected(bottom, len(bottom) - 1)
        rows = min(bottom[0][0], param.num_roi_per_image * param.num_image)
        self.count = None  # the bottoms tell it
        return [(rows, *shape[1:]) for shape in bottom[1:]]

    def compute(self, bottom: Arrays) -> Arrays:
        param = self.param.hard_mining_param
        loss, images = bottom[0].reshape(-1), bottom[1].reshape(len(bottom[1]), -1)[:, 0]
        order = np.argsort(loss, kind="stable")[::-1]
        by_image = [order[images[order] == image] for image in range(param.num_image)]
        chosen = np.concatenate([array[: param.num_roi_per_image] for array in by_image])
        rest = order[~np.isin(order, chosen)]
        most = min(len(loss), param.num_roi_per_image * param.num_image)
        chosen = np.sort(np.concatenate([chosen, rest[: most - len(chosen)]]))
        return [array[chosen] for array in bottom[1:]]


@register("ScaleRoute")
class ScaleRoute(HostRows):
    """The rows whose rois (the first bottom) are of some size; without any the nearest one."""

    bottoms = tops = (1, None)

    def check(self, bottom: Shapes) -> Shapes:
        param = self.param.scale_route_param
        self.check_rows(bottom, {0: (5,)})
        self.check_selected(bottom, len(bottom))
        low, high = param.low_scale or None, param.high_scale or None
        if low and high and high < low:
            self.fail("scale_route_param.high_scale", "must not be below low_scale")
        self.limits = low or 0, high or math.inf
        self.middle = math.sqrt(low * high) if low and high else low or high or 256
        return [(1, *shape[1:]) for shape in bottom]

    def compute(self, bottom: Arrays) -> Arrays:
        rois = bottom[0].reshape(len(bottom[0]), -1)[:, 1:].astype(np.float64)
        valid = (rois[:, :2] <= rois[:, 2:]).all(axis=1)
        scale = np.sqrt(np.where(valid, anchors.areas(rois), 0))
        chosen = np.flatnonzero((scale >= self.limits[0]) & (scale < self.limits[1]))
        if not len(chosen):
            distance = np.abs(np.log2(np.maximum(scale, 1e-30) / self.middle))
            chosen = np.array([distance.argmin()])
        return [array[chosen] for array in bottom]
