"""The layers of region proposal networks: Proposal (PVANet's), and the Python layers of Faster
R-CNN's training, for nets that name them without bringing them.

py-faster-rcnn's nets name modules rpn.*, which read its configuration. Here the settings are those
of its end-to-end training; `param_str` may name others, in small letters: 'rpn_batchsize': 128.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from ...errors import UserError
from ...layers.base import Arrays, Shapes, register
from ...layers.core.python import Hosts, PythonLayer
from ...parsing import INT32, as_float, as_int
from .. import anchors
from ..rows import HostRows
from .settings import read_settings

log = logging.getLogger("osucaffe")

BOTH: dict[str, Any] = {
    "base_size": 16, "ratios": [0.5, 1, 2], "scales": [8, 16, 32], "rng_seed": 3,
    "rpn_nms_thresh": 0.7, "rpn_min_size": 16.0, "allowed_border": 0.0,
    "rpn_positive_overlap": 0.7, "rpn_negative_overlap": 0.3, "rpn_clobber_positives": False,
    "rpn_batchsize": 256, "rpn_fg_fraction": 0.5, "rpn_positive_weight": -1.0,
    "rpn_bbox_inside_weights": [1, 1, 1, 1],
    "batch_size": 128, "fg_fraction": 0.25, "fg_thresh": 0.5, "bg_thresh_hi": 0.5,
    "bg_thresh_lo": 0.0, "bbox_inside_weights": [1, 1, 1, 1],
    "bbox_normalize_means": [0, 0, 0, 0], "bbox_normalize_stds": [0.1, 0.1, 0.2, 0.2],
}  # fmt: skip
TRAIN = {"rpn_pre_nms_top_n": 12000, "rpn_post_nms_top_n": 2000}
TEST = {"rpn_pre_nms_top_n": 6000, "rpn_post_nms_top_n": 300}


def candidates(
    first: np.ndarray, scores: np.ndarray, deltas: np.ndarray, stride: int,
    extents: tuple[float, float], least: float | np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """The boxes of all anchors in an image of these extents, their scores, and which are large
    enough. first: the anchors of the first cell. scores, deltas: (1, A * 2 or 4, H, W)."""
    boxes = anchors.shifted(first, scores.shape[2:], stride)
    boxes = anchors.decode(boxes, anchors.by_anchor(deltas, 4).astype(np.float64))
    boxes = anchors.clipped(boxes, *extents)
    large = (boxes[:, 2:] - boxes[:, :2] + 1 >= least).all(axis=1)
    return boxes, anchors.by_anchor(scores[:, len(first) :], 1)[:, 0], large


def image_info(rows: np.ndarray, image: int) -> np.ndarray:
    """Height, width and scale of an image, from im_info: a row for each, or one for all."""
    return rows.reshape(len(rows), -1)[min(image, len(rows) - 1)].astype(np.float64)


def by_image(results: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Regions and scores of all images, from those of each; regions begin with the image."""
    rois = [
        np.pad(boxes, ((0, 0), (1, 0)), constant_values=image)
        for image, (boxes, _) in enumerate(results)
    ]
    return [np.concatenate(rois), np.concatenate([scores for _, scores in results])]


def best(
    boxes: np.ndarray, chances: np.ndarray, before: int, threshold: float, behind: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best boxes and their scores: that many before and after suppression (0 or less: all)."""
    order = np.argsort(-chances, kind="stable")[: before if before > 0 else None]
    selected = order[anchors.nms(boxes[order], threshold, max(behind, 0))]
    return boxes[selected], chances[selected]


@register("Proposal")
class Proposal(HostRows):
    """The best regions of each image: scores, box deltas, im_info -> rois (and their scores).

    There may be fewer than post_nms_topn of an image.
    """

    bottoms = (3, 3)
    tops = (1, 2)

    def check(self, bottom: Shapes) -> Shapes:
        param = self.param.proposal_param
        for field in ("ratio", "scale"):
            if not getattr(param, field) or min(getattr(param, field)) <= 0:
                self.fail(f"proposal_param.{field}", "needs at least one, above 0")
        self.first = anchors.anchors_of(param.base_size, list(param.ratio), list(param.scale))
        scores, info, count = bottom[0], bottom[2], len(self.first)
        self.check_axes(scores, field="bottom[0]")
        for i, numbers in enumerate((2, 4)):
            shape = (scores[0], numbers * count, *scores[2:])
            self.check_bottom(bottom, i, shape, f" for {count} anchors (ratios x scales)")
        if info[:1] not in ((1,), scores[:1]) or math.prod(info[1:]) < 3:
            shapes = f"1 x 3 or {scores[0]} x 3: height, width, scale"
            self.fail("bottom[2]", f"has shape {info}, but must be {shapes}")
        rows = param.post_nms_topn * scores[0]
        return [(rows, 5), (rows,)][: max(1, len(self.param.top))]

    def compute(self, bottom: Arrays) -> Arrays:
        scores, deltas, info = bottom
        return by_image([
            self._best(scores[i, None], deltas[i, None], image_info(info, i)[:4])
            for i in range(len(scores))
        ])  # fmt: skip

    def _best(
        self, scores: np.ndarray, deltas: np.ndarray, info: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The regions of an image, and their scores."""
        param, (height, width, *scale) = self.param.proposal_param, info
        # im_info may tell the scale of the height and, after it, that of the width.
        least = param.min_size * np.array([scale[-1], scale[0]])
        boxes, chances, large = candidates(
            self.first, scores, deltas, param.feat_stride, (height, width), least
        )
        # Too small a box is the last choice, but one.
        limits = param.pre_nms_topn, param.nms_thresh, param.post_nms_topn
        return best(boxes, chances * large, *limits)


_MIN = {"rng_seed": 0} | dict.fromkeys(
    ("base_size", "feat_stride", "num_classes", "rpn_batchsize"), 1
)
_MAX = {"num_classes": 1 << 16}
_POSITIVE = ("ratios", "scales")
_MAX_SHAPES = 100
"""Ratios, and scales, of anchors."""


def _like(default: Any, given: Any, name: str) -> Any:
    """A setting of param_str, which has to be what its default is."""
    try:
        if isinstance(default, list):
            numbers = [as_float(each) for each in given] if isinstance(given, list | tuple) else []
            if name in _POSITIVE and numbers and min(numbers) > 0 and len(numbers) <= _MAX_SHAPES:
                return numbers
            if name in _POSITIVE or len(numbers) != len(default):
                raise ValueError(f"{given!r} is not a list of such numbers")
            return numbers
        if isinstance(default, bool):
            return bool(as_int(int(given) if isinstance(given, bool) else given, 0, 1))
        if isinstance(default, int):
            return as_int(given, _MIN.get(name, INT32[0]), _MAX.get(name, INT32[1]))
        return as_float(given)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


class RpnLayer(PythonLayer):
    """What the three share: their settings, and that they send no gradients down."""

    required: tuple[str, ...] = ()
    least = (3, 1)
    """How many bottoms and tops it needs."""
    maps: tuple[int, ...] = ()
    """How many channels the first bottoms have for each anchor."""
    warned = False
    count = 1
    """How many regions it gave last."""

    def setup(self, bottom: Hosts, top: Hosts) -> None:
        text = self.param_str.strip()
        defaults = BOTH | (TEST if self.phase else TRAIN) | dict.fromkeys(self.required, 1)
        try:
            given = read_settings(text)
            if not isinstance(given, dict) or any(name not in given for name in self.required):
                raise ValueError("it lacks what the layer needs")
            checked = {
                name: _like(defaults[name], given[name], name) for name in defaults.keys() & given
            }
        except ValueError as error:
            pairs = ", ".join(f"'{name}': NUMBER" for name in self.required)
            self._refuse(f"python_param.param_str: {text!r} must be pairs such as {pairs}: {error}")
        self.settings = SimpleNamespace(**defaults | checked)
        self.random = np.random.default_rng(self.settings.rng_seed)
        self.first = anchors.anchors_of(
            self.settings.base_size, self.settings.ratios, self.settings.scales
        )
        if len(bottom) < self.least[0] or len(top) < self.least[1]:
            self._refuse("needs {} bottoms and {} tops".format(*self.least))
        for i, numbers in enumerate(self.maps):
            wanted, shape = numbers * len(self.first), bottom[i].shape
            if len(shape) != 4 or shape[1] != wanted:
                self._refuse(
                    f"bottom[{i}] has shape {shape}, but needs {wanted} channels for "
                    f"{len(self.first)} anchors (ratios x scales)"
                )

    def _refuse(self, text: str) -> NoReturn:
        raise UserError(f'layer "{self.layer_param.name}" (Python), {text}')

    def ground_truths(self, boxes: np.ndarray, image: int, images: int) -> np.ndarray:
        """The objects of an image: all, but where a sixth number says which image they are of."""
        if boxes.shape[1] > 5:
            return boxes[boxes[:, 5] == image]
        if images > 1 and not self.warned:
            self.warned = True
            log.warning(
                'layer "%s": gt_boxes does not say which of %d images an object is in (by a sixth '
                "number): each is taken to be in all of them",
                self.layer_param.name,
                images,
            )
        return boxes

    def write(self, top: Hosts, values: Sequence[np.ndarray]) -> None:
        """Write rows of that many regions to the tops."""
        self.count = len(values[0])
        for blob, rows in zip(top, values, strict=False):
            blob.reshape(*rows.shape)
            blob.data[...] = rows


class ProposalLayer(RpnLayer):
    """Scores, box deltas, im_info -> the best regions of each image (and their scores)."""

    required = ("feat_stride",)
    maps = (2, 4)

    def reshape(self, bottom: Hosts, top: Hosts) -> None:
        for blob, numbers in zip(top, (5, 1), strict=False):
            blob.reshape(self.count, numbers)

    def forward(self, bottom: Hosts, top: Hosts) -> None:
        scores, deltas, info = (blob.data for blob in bottom)
        self.write(top, by_image([
            self._best(scores[i, None], deltas[i, None], image_info(info, i)[:3])
            for i in range(len(scores))
        ]))  # fmt: skip

    def _best(
        self, scores: np.ndarray, deltas: np.ndarray, info: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The regions of an image, and their scores."""
        settings, (height, width, scale) = self.settings, info
        boxes, chances, large = candidates(
            self.first, scores, deltas, settings.feat_stride, (height, width),
            settings.rpn_min_size * scale,
        )  # fmt: skip
        boxes, chances = best(
            boxes[large], chances[large], settings.rpn_pre_nms_top_n, settings.rpn_nms_thresh,
            settings.rpn_post_nms_top_n,
        )  # fmt: skip
        if not len(boxes):  # a blob without elements there is not: the whole image, at score 0
            return np.array([[0, 0, width - 1, height - 1]]), np.zeros((1, 1))
        return boxes, chances[:, None]


class AnchorTargetLayer(RpnLayer):
    """Which anchors are objects and which are not, and how their boxes are to change."""

    required = ("feat_stride",)
    maps = (2,)

    def reshape(self, bottom: Hosts, top: Hosts) -> None:
        images, _, height, width = bottom[0].shape
        count = len(self.first)
        top[0].reshape(images, 1, count * height, width)
        for part in top[1:4]:
            part.reshape(images, count * 4, height, width)

    def forward(self, bottom: Hosts, top: Hosts) -> None:
        images = len(bottom[0].data)
        for image in range(images):
            ground_truths = self.ground_truths(bottom[1].data, image, images)[:, :4].astype(
                np.float64
            )
            self._one(image, ground_truths, image_info(bottom[2].data, image)[:3], top)

    def _one(self, image: int, ground_truths: np.ndarray, info: np.ndarray, top: Hosts) -> None:
        settings, (image_height, image_width, _) = self.settings, info
        height, width = top[1].shape[2:]
        boxes = anchors.shifted(self.first, (height, width), settings.feat_stride)
        border = settings.allowed_border
        inside = (boxes[:, :2] >= -border).all(axis=1)
        inside &= (boxes[:, 2:] < np.array([image_width, image_height]) + border).all(axis=1)
        labels = np.full(len(boxes), -1.0)
        targets, inner, outer = (np.zeros((len(boxes), 4)) for _ in range(3))
        if inside.any() and len(ground_truths):
            overlaps = anchors.iou(boxes[inside], ground_truths)
            labels[inside] = self._labels(overlaps)
            targets[inside] = anchors.encode(boxes[inside], ground_truths[overlaps.argmax(axis=1)])
        positive, negative = labels == 1, labels == 0
        inner[positive] = settings.rpn_bbox_inside_weights
        share = settings.rpn_positive_weight
        for chosen, part in ((positive, share), (negative, 1 - share)):
            total = (positive | negative).sum() if share < 0 else chosen.sum()
            outer[chosen] = (1 if share < 0 else part) / max(total, 1)
        maps = labels.reshape(height, width, -1).transpose(2, 0, 1)
        top[0].data[image] = maps.reshape(top[0].shape[1:])
        for blob, rows in zip(top[1:], (targets, inner, outer), strict=False):
            blob.data[image] = rows.reshape(height, width, -1).transpose(2, 0, 1)

    def _labels(self, overlaps: np.ndarray) -> np.ndarray:
        """Of anchors by their overlaps with the objects: 1, 0, or -1 where they do not count."""
        settings, best = self.settings, overlaps.max(axis=1)
        labels = np.full(len(overlaps), -1.0)
        negative = best < settings.rpn_negative_overlap
        if not settings.rpn_clobber_positives:
            labels[negative] = 0
        labels[(overlaps == overlaps.max(axis=0)).any(axis=1)] = 1
        labels[best >= settings.rpn_positive_overlap] = 1
        if settings.rpn_clobber_positives:
            labels[negative] = 0
        most = int(settings.rpn_fg_fraction * settings.rpn_batchsize)
        for label in (1, 0):
            indices = np.flatnonzero(labels == label)
            labels[indices] = -1
            selected = anchors.sample(self.random, indices, most)
            labels[selected] = label
            most = settings.rpn_batchsize - len(selected)
        return labels


class ProposalTargetLayer(RpnLayer):
    """A sample of the regions, with their labels and what their boxes are to become."""

    required = ("num_classes",)
    least = (2, 2)

    def reshape(self, bottom: Hosts, top: Hosts) -> None:
        top[0].reshape(self.count, 5)
        top[1].reshape(self.count)
        for part in top[2:5]:
            part.reshape(self.count, 4 * self.settings.num_classes)

    def forward(self, bottom: Hosts, top: Hosts) -> None:
        rois = bottom[0].data
        images = int(rois[:, 0].max()) + 1
        parts = []
        for image in range(images):
            ground_truths = self.ground_truths(bottom[1].data, image, images)
            of_image = rois[rois[:, 0] == image]
            parts.append(
                self._sampled(of_image, ground_truths, image, self.settings.batch_size // images)
            )
        self.write(top, [np.concatenate(part) for part in zip(*parts, strict=True)])

    def _sampled(
        self, rois: np.ndarray, ground_truths: np.ndarray, image: int, count: int
    ) -> list[np.ndarray]:
        """What goes to the tops of the regions of an image: `count` of them (not above 0: all)."""
        settings = self.settings
        ground_truth_rois = np.pad(ground_truths[:, :4], ((0, 0), (1, 0)), constant_values=image)
        rois = np.concatenate([rois, ground_truth_rois])
        if not len(ground_truths):  # a distant object that nothing overlaps
            ground_truths = np.array([[-2.0, -2, -1, -1, 0]])
        near = anchors.iou(rois[:, 1:].astype(np.float64), ground_truths[:, :4].astype(np.float64))
        best = near.max(axis=1)
        count = count if count > 0 else len(rois)
        objects = np.flatnonzero(best >= settings.fg_thresh)
        objects = anchors.sample(self.random, objects, round(settings.fg_fraction * count))
        others = (best < settings.bg_thresh_hi) & (best >= settings.bg_thresh_lo)
        chosen = np.append(
            objects, anchors.sample(self.random, np.flatnonzero(others), count - len(objects))
        )
        nearest = ground_truths[near[chosen].argmax(axis=1)]
        labels = nearest[:, 4].copy()
        labels[len(objects) :] = 0
        changes = anchors.encode(rois[chosen, 1:].astype(np.float64), nearest[:, :4])
        changes = (changes - settings.bbox_normalize_means) / settings.bbox_normalize_stds
        targets, inner = (np.zeros((len(chosen), settings.num_classes, 4)) for _ in range(2))
        rows = np.flatnonzero(labels > 0)
        # Two classes: boxes are the same for all kinds of objects (R-FCN's class-agnostic nets).
        indices = np.minimum(labels[rows].astype(int), settings.num_classes - 1)
        targets[rows, indices] = changes[rows]
        inner[rows, indices] = settings.bbox_inside_weights
        wide = [part.reshape(len(chosen), -1) for part in (targets, inner, inner > 0)]
        return [rois[chosen], labels, *wide]
