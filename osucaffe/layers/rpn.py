"""Owns the Python layers of Faster R-CNN's training, for nets that name them without bringing them.

py-faster-rcnn's nets name modules rpn.*, which read its configuration. Here the settings are those
of its end-to-end training; `param_str` may name others, in small letters: 'rpn_batchsize': 128.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import UserError
from . import anchors
from .python import HostBlob, PythonLayer

Blobs = Sequence[HostBlob]

BOTH: dict[str, Any] = {
    "base_size": 16, "ratios": [0.5, 1, 2], "scales": [8, 16, 32], "rng_seed": 3,
    "rpn_nms_thresh": 0.7, "rpn_min_size": 16, "allowed_border": 0,
    "rpn_positive_overlap": 0.7, "rpn_negative_overlap": 0.3, "rpn_clobber_positives": False,
    "rpn_batchsize": 256, "rpn_fg_fraction": 0.5, "rpn_positive_weight": -1.0,
    "rpn_bbox_inside_weights": [1, 1, 1, 1],
    "batch_size": 128, "fg_fraction": 0.25, "fg_thresh": 0.5, "bg_thresh_hi": 0.5,
    "bg_thresh_lo": 0.0, "bbox_inside_weights": [1, 1, 1, 1],
    "bbox_normalize_means": [0, 0, 0, 0], "bbox_normalize_stds": [0.1, 0.1, 0.2, 0.2],
}  # fmt: skip
TRAIN = {"rpn_pre_nms_top_n": 12000, "rpn_post_nms_top_n": 2000}
TEST = {"rpn_pre_nms_top_n": 6000, "rpn_post_nms_top_n": 300}


class RpnLayer(PythonLayer):
    """What the three share: their settings, and that they send no gradients down."""

    required: tuple[str, ...] = ()
    count = 1
    """How many regions it gave last."""

    def setup(self, bottom: Blobs, top: Blobs) -> None:
        text = self.param_str.strip()
        try:  # YAML as these nets write it is a dictionary of Python, perhaps without its braces
            given = ast.literal_eval(text if text.startswith("{") else "{" + text + "}")
        except (SyntaxError, ValueError):
            given = None
        if not isinstance(given, dict) or any(name not in given for name in self.required):
            needed = ", ".join(f"'{name}': NUMBER" for name in self.required)
            raise UserError(
                f'layer "{self.layer_param.name}", python_param.param_str: {text!r} must be '
                f"pairs such as {needed}"
            )
        self.settings = SimpleNamespace(**BOTH | (TEST if self.phase else TRAIN) | given)
        self.random = np.random.default_rng(self.settings.rng_seed)
        self.first = anchors.anchors_of(
            self.settings.base_size, self.settings.ratios, self.settings.scales
        )

    def sample(self, places: np.ndarray, count: int) -> np.ndarray:
        """Some of the places, if there are more than so many, in their order."""
        if len(places) <= count:
            return places
        return np.sort(self.random.choice(places, count, replace=False))

    def give(self, top: Blobs, values: Sequence[np.ndarray]) -> None:
        """Let the tops be rows of so many regions."""
        self.count = len(values[0])
        for blob, rows in zip(top, values, strict=False):
            blob.reshape(*rows.shape)
            blob.data[...] = rows


class ProposalLayer(RpnLayer):
    """Scores, box deltas, im_info of one image -> its best regions (and their scores)."""

    required = ("feat_stride",)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        for blob, numbers in zip(top, (5, 1), strict=False):
            blob.reshape(self.count, numbers)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        settings, (scores, deltas, information) = self.settings, (each.data for each in bottom)
        height, width, scale = information.reshape(-1)[:3].astype(np.float64)
        boxes = anchors.shifted(self.first, scores.shape[2:], settings.feat_stride)
        boxes = anchors.decode(boxes, anchors.by_anchor(deltas, 4).astype(np.float64))
        boxes = anchors.clipped(boxes, height, width)
        chances = anchors.by_anchor(scores[:, len(self.first) :], 1)
        large = (boxes[:, 2:] - boxes[:, :2] + 1 >= settings.rpn_min_size * scale).all(axis=1)
        boxes, chances = boxes[large], chances[large]
        order = np.argsort(-chances[:, 0], kind="stable")
        if settings.rpn_pre_nms_top_n > 0:
            order = order[: settings.rpn_pre_nms_top_n]
        most = max(settings.rpn_post_nms_top_n, 0)
        kept = order[anchors.suppress(boxes[order], settings.rpn_nms_thresh, most)]
        if not len(kept):  # a blob without elements there is not: the whole image, at score 0
            boxes, chances = np.array([[0, 0, width - 1, height - 1]]), np.zeros((1, 1))
            kept = np.zeros(1, np.intp)
        self.give(top, [np.pad(boxes[kept], ((0, 0), (1, 0))), chances[kept]])


class AnchorTargetLayer(RpnLayer):
    """Which anchors are objects and which are not, and how their boxes are to change."""

    required = ("feat_stride",)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        height, width = bottom[0].shape[2:]
        count = len(self.first)
        top[0].reshape(1, 1, count * height, width)
        for each in top[1:4]:
            each.reshape(1, count * 4, height, width)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        settings, truths = self.settings, bottom[1].data[:, :4].astype(np.float64)
        image_height, image_width = bottom[2].data.reshape(-1)[:2]
        height, width = bottom[0].shape[2:]
        boxes = anchors.shifted(self.first, (height, width), settings.feat_stride)
        border = settings.allowed_border
        inside = (boxes[:, :2] >= -border).all(axis=1)
        inside &= (boxes[:, 2:] < np.array([image_width, image_height]) + border).all(axis=1)
        labels = np.full(len(boxes), -1.0)
        targets, inner, outer = (np.zeros((len(boxes), 4)) for _ in range(3))
        if inside.any() and len(truths):
            own = anchors.overlaps(boxes[inside], truths)
            labels[inside] = self._labels(own)
            targets[inside] = anchors.encode(boxes[inside], truths[own.argmax(axis=1)])
        positive, negative = labels == 1, labels == 0
        inner[positive] = settings.rpn_bbox_inside_weights
        share = settings.rpn_positive_weight
        for chosen, part in ((positive, share), (negative, 1 - share)):
            total = (positive | negative).sum() if share < 0 else chosen.sum()
            outer[chosen] = (1 if share < 0 else part) / max(total, 1)
        maps = labels.reshape(height, width, -1).transpose(2, 0, 1)
        top[0].data[...] = maps.reshape(top[0].shape)
        for blob, rows in zip(top[1:], (targets, inner, outer), strict=False):
            blob.data[0] = rows.reshape(height, width, -1).transpose(2, 0, 1)

    def _labels(self, own: np.ndarray) -> np.ndarray:
        """Of anchors by their overlaps with the objects: 1, 0, or -1 where they do not count."""
        settings, best = self.settings, own.max(axis=1)
        labels = np.full(len(own), -1.0)
        negative = best < settings.rpn_negative_overlap
        if not settings.rpn_clobber_positives:
            labels[negative] = 0
        labels[(own == own.max(axis=0)).any(axis=1)] = 1
        labels[best >= settings.rpn_positive_overlap] = 1
        if settings.rpn_clobber_positives:
            labels[negative] = 0
        most = int(settings.rpn_fg_fraction * settings.rpn_batchsize)
        for label in (1, 0):
            places = np.flatnonzero(labels == label)
            labels[places] = -1
            kept = self.sample(places, most)
            labels[kept] = label
            most = settings.rpn_batchsize - len(kept)
        return labels


class ProposalTargetLayer(RpnLayer):
    """A sample of the regions, with their labels and what their boxes are to become."""

    required = ("num_classes",)

    def reshape(self, bottom: Blobs, top: Blobs) -> None:
        top[0].reshape(self.count, 5)
        top[1].reshape(self.count)
        for each in top[2:5]:
            each.reshape(self.count, 4 * self.settings.num_classes)

    def forward(self, bottom: Blobs, top: Blobs) -> None:
        settings, truths = self.settings, bottom[1].data
        rois = np.concatenate([bottom[0].data, np.pad(truths[:, :4], ((0, 0), (1, 0)))])
        own = anchors.overlaps(rois[:, 1:].astype(np.float64), truths[:, :4].astype(np.float64))
        best = own.max(axis=1)
        count = settings.batch_size if settings.batch_size > 0 else len(rois)
        objects = np.flatnonzero(best >= settings.fg_thresh)
        objects = self.sample(objects, round(settings.fg_fraction * count))
        others = (best < settings.bg_thresh_hi) & (best >= settings.bg_thresh_lo)
        chosen = np.append(objects, self.sample(np.flatnonzero(others), count - len(objects)))
        nearest = truths[own[chosen].argmax(axis=1)]
        labels = nearest[:, 4].copy()
        labels[len(objects) :] = 0
        changes = anchors.encode(rois[chosen, 1:].astype(np.float64), nearest[:, :4])
        changes = (changes - settings.bbox_normalize_means) / settings.bbox_normalize_stds
        targets, inner = (np.zeros((len(chosen), settings.num_classes, 4)) for _ in range(2))
        rows = np.flatnonzero(labels > 0)
        # Two classes: boxes are the same for all kinds of objects (R-FCN's class-agnostic nets).
        places = np.minimum(labels[rows].astype(int), settings.num_classes - 1)
        targets[rows, places] = changes[rows]
        inner[rows, places] = settings.bbox_inside_weights
        wide = [each.reshape(len(chosen), -1) for each in (targets, inner, inner > 0)]
        self.give(top, [rois[chosen], labels, *wide])
