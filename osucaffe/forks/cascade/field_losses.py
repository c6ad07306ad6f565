"""The losses of MS-CNN and Cascade R-CNN's proposal networks, which cells count in them, and
how well these networks do, cell by cell.

They compute what zhaoweicai/mscnn's detection_loss_layer.cpp and detection_accuracy_layer.cpp and
zhaoweicai/cascade-rcnn's detection_group_loss_layer.cpp and detection_group_accuracy_layer.cpp do.
Truth is a map (N, 6, H, W): see fields.py. The host chooses which cells count, as in the forks,
from a copy of the scores; all else of the losses runs where the net does.
"""

from __future__ import annotations

import math
from itertools import cycle

import numpy as np

from ...backends.primitives.losses import FLT_MIN
from ...layers.base import Arrays, Blobs, Flags, Program, Shape, Shapes, Tensor, register
from ...layers.core.losses import Loss
from .. import anchors
from .fields import FieldLayer, mean

GAP = (
    "low = where(d < 2, least_shift, least_growth); high = where(d < 2, most_shift, most_growth); "
    "gap = max(low, min(high, a)) - b"
)


class FieldLoss(FieldLayer, Loss):
    """Cross-entropy of the cells that a subclass chooses, and the distances of their boxes.

    The top (1, 1, 1, 2) holds their weighted sum and the boxes' part of it. As in the forks only
    the first one's gradient goes down, and through codes beyond their bounds as through others.
    """

    weighs_background = False
    """Whether pos_neg_weighted weighs cells without an object where there is no object at all."""
    ranks_probabilities = False
    """Whether cells are chosen by their probabilities, or by their scores as they are."""
    smooth: bool

    def setup(self, bottom: Shapes) -> Shapes:
        self.read_maps(bottom)
        self.bounds, self.passes = self.codes.bounds(), 0
        return [(1, 1, 1, 2)]

    def choose(self, scores: np.ndarray, labels: np.ndarray, iou: np.ndarray) -> np.ndarray:
        """Which cells (N, H * W) count, by their scores (N, C, H * W)."""
        raise NotImplementedError

    def _prepare(self, reads: Arrays, writes: Arrays) -> None:
        """Of scores and truth: the cells' labels, weights and boxes' weights and codes."""
        count, classes = reads[0].shape[:2]
        ground_truth = reads[1].reshape(count, 6, -1)
        labels = ground_truth[:, 0].astype(int)
        self.random = np.random.default_rng([self.seed, self.key, self.passes])
        self.passes += 1
        selected = self.choose(reads[0].reshape(count, classes, -1), labels, ground_truth[:, 5])
        shown = self.shown(labels)
        counted = selected & (shown != self.ignored)
        boxes = selected & (labels != 0) & (labels != self.ignored)
        weights = (
            self._weights(labels != 0, selected, ground_truth[:, 5])
            * counted
            / max(counted.sum(), 1)
        )
        shares = getattr(self.setting, "lambda") * boxes / max(4 * boxes.sum(), 1)
        maps = zip(reads[1][:, 1:5].astype(np.float64), cycle(self.fields), strict=False)
        codes = [self.codes.encode(item, field, self.stride) for item, field in maps]
        targets = np.where(boxes[:, None], np.reshape(codes, (count, 4, -1)), 0)
        for array, values in zip(writes, (shown, weights, shares, targets), strict=True):
            array[...] = values.reshape(array.shape)

    def _weights(self, objects: np.ndarray, selected: np.ndarray, iou: np.ndarray) -> np.ndarray:
        """What cells weigh: objects and the rest share all weights as bg_multiple says."""
        param = self.setting
        weighted = getattr(param, "iou_weighted", False)
        weights = np.where(objects & weighted, iou, 1.0).astype(np.float64)
        total = weights[selected & objects].sum()
        if param.pos_neg_weighted:
            share = selected.sum() / (1 + param.bg_multiple)
            others = weights[selected & ~objects].sum()
            if others and (total or self.weighs_background):
                weights[~objects] *= param.bg_multiple * share / others
            if total:
                weights[objects] *= share / total
        return weights

    def _parts(self, shape: Shape) -> list[Tensor]:
        """Memory for scores and codes that one bottom holds."""
        count, channels, *extent = shape
        return [self.tensor((count, part, *extent)) for part in (channels - 4, 4)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        bottom[-1].keep_exact()  # in 16 bits objects would move
        *inputs, ground_truth = (blob.data for blob in bottom)
        if len(inputs) == 1:
            inputs = self._parts(inputs[0].shape)
            program.split(bottom[0].data, inputs, axis=1)
        conf, box = inputs
        count, classes, *extent = conf.shape
        positions = math.prod(extent)
        probability = self.tensor(conf.shape)
        program.softmax(conf, probability, axis=1)
        label, weight, share = self.cells = [self.tensor((count, 1, positions)) for _ in range(3)]
        self.target = self.tensor((count, 4, positions))
        ranked = probability if self.ranks_probabilities else conf
        reads = [ranked, self.row_major(program, ground_truth)]
        program.host(reads, [*self.cells, self.target], function=self._prepare)
        self.classes = self.indices(program, (1, classes, 1))
        self.axes = self.indices(program, (1, 4, 1))
        self.probability = probability.view((count, classes, positions))
        self.box = box.view((count, 4, positions))
        picked, losses = self.tensor(label.shape), [self.tensor(()) for _ in range(2)]
        program.reduce(
            [self.probability, label, self.classes], picked, formula="y = where(b == c, a, 0)",
            axes=(1,),
        )  # fmt: skip
        entropy = f"y = -b * log(max(a, {FLT_MIN}))"
        program.reduce([picked, weight], losses[0], formula=entropy, axes=(0, 1, 2))
        half = "0.5 * gap * gap"
        curve = f"where(abs(gap) < 1, {half}, abs(gap) - 0.5)" if self.smooth else half
        program.reduce(
            [self.box, self.target, share, self.axes], losses[1], axes=(0, 1, 2),
            formula=f"{GAP}; y = c * {curve}", constants=self.bounds,
        )  # fmt: skip
        both = self.tensor(())
        program.elementwise(losses, [both], formula="y = a + b")
        program.concat([both.view((1,)), losses[1].view((1,))], top[0].data.view((2,)), axis=0)

    def backward(self, program: Program, top: Blobs, propagate_down: Flags, bottom: Blobs) -> None:
        parts: list[Tensor] = self._parts(bottom[0].shape) if len(bottom) == 2 else []
        diffs = [blob.diff if d else None for blob, d in zip(bottom, propagate_down, strict=True)]
        conf, box = parts or diffs[:2]
        seed = self.tensor((1,))
        program.crop(top[0].diff.view((2,)), seed, offsets=(0,))
        seed = seed.view((1, 1, 1))
        label, weight, share = self.cells
        if conf is not None:
            program.broadcast(
                [self.probability, label, self.classes, weight, seed],
                [conf.view(self.probability.shape)],
                formula="y = d * e * (a - where(b == c, 1, 0))",
            )  # fmt: skip
        if box is not None:
            slope = "max(-1, min(1, gap))" if self.smooth else "gap"
            program.broadcast(
                [self.box, self.target, share, self.axes, seed], [box.view(self.box.shape)],
                formula=f"{GAP}; y = c * e * {slope}", constants=self.bounds,
            )  # fmt: skip
        if parts:
            program.concat(parts, bottom[0].diff, axis=1)


UNBOUNDED = {"least_shift": -1e30, "most_shift": 1e30, "least_growth": -1e30, "most_growth": 1e30}


def _best(positions: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
    """The places with the highest scores, as many as asked for."""
    return positions[np.argsort(-scores[positions], kind="stable")[:count]]


@register("DetectionLoss")
class DetectionLoss(FieldLoss):
    """The loss of maps of scores and boxes, N x classes + 4 x H x W, of one field (MS-CNN)."""

    messages = ("detection_loss_param", "bbox_reg_param", "loss_param")
    no_gradient = (1,)

    def setup(self, bottom: Shapes) -> Shapes:
        tops = super().setup(bottom)
        self.smooth = self.setting.bb_smooth
        return tops

    def choose(self, scores: np.ndarray, labels: np.ndarray, iou: np.ndarray) -> np.ndarray:
        free = (labels == 0) & (iou < self.setting.bg_threshold)
        selected = [self._of_image(*item) for item in zip(scores, labels, free, strict=True)]
        return np.array(selected) | (labels != 0)

    def _of_image(self, scores: np.ndarray, labels: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Which cells without an object count."""
        param, chosen = self.setting, np.zeros(len(labels), bool)
        shown = self.shown(labels)
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

    def setup(self, bottom: Shapes) -> Shapes:
        tops, param, name = super().setup(bottom), self.setting, self.messages[0]
        if not (param.HasField("field_xyr") and param.HasField("field_whr")):
            self.bounds = UNBOUNDED
        for field, choices in (
            ("bbox_loss_type", ("Smooth_L1", "Euclidean_L2")),
            ("neg_mining_type", ("random", "bootstrap", "mixture")),
            ("neg_ranking_type", ("conf_loss", "conf_prob")),  # which rank cells alike
        ):
            if getattr(param, field) not in choices:
                self.fail(f"{name}.{field}", f"must be {' or '.join(choices)}")
        if param.batch_size < 1 and param.batch_size != -1:
            self.fail(f"{name}.batch_size", "must be above 0, or -1: as many as there are")
        self.smooth = param.bbox_loss_type == "Smooth_L1"
        return tops

    def choose(self, scores: np.ndarray, labels: np.ndarray, iou: np.ndarray) -> np.ndarray:
        images = len(labels) // len(self.fields)
        free = (labels == 0) & (iou < self.setting.bg_threshold)
        parts = (item.reshape(images, -1) for item in (-scores[:, 0], labels, free))
        selected = [self._of_image(*item) for item in zip(*parts, strict=True)]
        return np.reshape(selected, labels.shape)

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
        chosen[anchors.sample(self.random, objects, most)] = True
        count = min(count, len(others))
        hard = {"random": 0, "bootstrap": count, "mixture": math.floor(count * 0.5 + 0.5)}
        best = _best(others, scores, hard[param.neg_mining_type])
        chosen[best] = True
        chosen[anchors.sample(self.random, np.setdiff1d(others, best), count - len(best))] = True
        return chosen


class FieldAccuracy(FieldLayer):
    """The share of right labels and, of objects, theirs (a second top: their boxes' overlap).

    Cells without an object that overlap one by bg_threshold do not count. -1: nothing to count.
    """

    tops = (1, 2)
    non_differentiable_tops = (0, 1)
    strict = False

    def setup(self, bottom: Shapes) -> Shapes:
        self.read_maps(bottom)
        tops: Shapes = [(1, 1, 1, 2), (1, 1, 1, 1)]
        return tops[: len(self.param.top)]

    def right(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Whether the scores (N, C, H, W) tell these labels (N, H, W)."""
        raise NotImplementedError

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        bottom[-1].keep_exact()  # in 16 bits objects would move
        reads = [self.row_major(program, blob.data) for blob in bottom]
        program.host(reads, [blob.data for blob in top], function=self._compute)

    def _compute(self, reads: Arrays, writes: Arrays) -> None:
        *inputs, ground_truth = reads
        scores, codes = inputs if len(inputs) > 1 else (inputs[0][:, :-4], inputs[0][:, -4:])
        labels = ground_truth[:, 0].astype(int)
        shown = self.shown(labels)
        background = ground_truth[:, 5] < self.setting.bg_threshold
        counted = (shown != self.ignored) & ((shown != 0) | background)
        right = self.right(scores, shown)
        writes[0].flat[:] = [mean(right[counted]), mean(right[counted & (shown != 0)])]
        if len(writes) > 1:
            objects = (labels != 0) & (labels != self.ignored)
            writes[1].flat[:] = mean(self._iou(codes, ground_truth, objects))

    def _iou(self, codes: np.ndarray, ground_truth: np.ndarray, objects: np.ndarray) -> np.ndarray:
        """Of the boxes with those of the objects, where there are any."""
        values = []
        for maps, true, at, field in zip(
            codes, ground_truth, objects, cycle(self.fields), strict=False
        ):
            boxes = self.codes.decode(maps, field, self.stride)[at.reshape(-1)]
            others = true[1:5, at].T.astype(np.float64)
            others[:, :2] -= others[:, 2:] / 2
            for rows in (boxes, others):
                rows[:, 2:] += rows[:, :2] - 1
            values.append(anchors.paired_iou(boxes, others, strict=self.strict))
        return np.concatenate(values)


@register("DetectionAccuracy")
class DetectionAccuracy(FieldAccuracy):
    """How well maps of one field do: N x classes + 4 x H x W, and truth (MS-CNN)."""

    bottoms = (2, 2)
    no_gradient = (0, 1)
    messages = ("detection_accuracy_param", "bbox_reg_param", "loss_param")

    def setup(self, bottom: Shapes) -> Shapes:
        tops, (top_k, classes) = super().setup(bottom), (self.setting.top_k, self.setting.cls_num)
        if not 1 <= top_k <= classes:
            self.fail("detection_accuracy_param.top_k", f"is {top_k}: it must be 1 .. {classes}")
        return tops

    def right(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        picked = np.take_along_axis(scores, labels[:, None], axis=1)
        index = np.arange(scores.shape[1]).reshape(1, -1, 1, 1)
        # Of scores that are alike the class of the greater number comes first.
        before = (scores > picked) | ((scores == picked) & (index > labels[:, None]))
        return before.sum(axis=1) < self.setting.top_k


@register("DetectionGroupAccuracy")
class DetectionGroupAccuracy(FieldAccuracy):
    """How well maps of several fields do: scores, boxes and truth (Cascade R-CNN)."""

    bottoms = (3, 3)
    no_gradient = (0, 1, 2)
    messages = ("detection_group_accuracy_param", "bbox_reg_param", "loss_param")
    strict = True

    def right(self, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return scores.argmax(axis=1) == labels
