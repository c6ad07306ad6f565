"""Owns Proposal: the regions that a region proposal network finds, without Python (PVANet's)."""

from __future__ import annotations

import math

import numpy as np

from .. import anchors
from ..base import Blobs, Layer, Program, Reshaped, Shapes, register


@register("Proposal")
class Proposal(Layer):
    """The best regions of each image: scores, box deltas, im_info -> rois (and their scores).

    The host finds them, and there may be fewer than post_nms_topn of an image.
    """

    bottoms = (3, 3)
    tops = (1, 2)
    no_gradient = (0, 1, 2)
    gives_none = (0, 1)
    reshapes = dynamic = True
    found: int | None = None
    """How many regions there were last; post_nms_topn, before the first forward pass."""

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.proposal_param
        self.ratios, self.scales = list(param.ratio), list(param.scale)
        for field in ("ratio", "scale"):
            if not getattr(param, field) or min(getattr(param, field)) <= 0:
                self.fail(f"proposal_param.{field}", "needs at least one, above 0")
        scores, deltas, information = bottom
        count = len(self.ratios) * len(self.scales)
        wanted = [(scores[0], 2 * count), (scores[0], 4 * count)]
        for i, (shape, begin) in enumerate(zip((scores, deltas), wanted, strict=True)):
            if len(shape) != 4 or shape[:2] != begin or shape[2:] != scores[2:]:
                self.fail(
                    f"bottom[{i}]",
                    f"has shape {shape}: {count} anchors (ratios x scales) of bottom[0], {scores}, "
                    f"need N x {begin[1]} x H x W",
                )
        if information[:1] not in ((1,), scores[:1]) or math.prod(information[1:]) < 3:
            self.fail(
                "bottom[2]",
                f"has shape {information}, but must be 1 x 3 or {scores[0]} x 3: height, width, "
                "scale",
            )
        if self.found is None:
            self.found = param.post_nms_topn * scores[0]
        return [(self.found, 5), (self.found,)][: max(1, len(self.param.top))]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        program.host(
            [blob.data for blob in bottom], [blob.data for blob in top], function=self._propose
        )

    def _propose(self, reads: list[np.ndarray], writes: list[np.ndarray]) -> None:
        scores, deltas, information = reads
        about = information.reshape(len(information), -1)
        found = [
            self._best(scores[i, None], deltas[i, None], about[min(i, len(about) - 1)])
            for i in range(len(scores))
        ]
        rois, chances = (np.concatenate(part) for part in zip(*found, strict=True))
        if len(rois) != len(writes[0]):
            self.found = len(rois)
            raise Reshaped
        writes[0][:, 0] = np.repeat(np.arange(len(found)), [len(boxes) for boxes, _ in found])
        writes[0][:, 1:] = rois
        if len(writes) > 1:
            writes[1][:] = chances

    def _best(
        self, scores: np.ndarray, deltas: np.ndarray, about: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The regions of an image, and their scores."""
        param = self.param.proposal_param
        height, width, *scale = about[:4].astype(np.float64)
        first = anchors.anchors_of(param.base_size, self.ratios, self.scales)
        boxes = anchors.shifted(first, scores.shape[2:], param.feat_stride)
        boxes = anchors.decode(boxes, anchors.by_anchor(deltas, 4).astype(np.float64))
        boxes = anchors.clipped(boxes, height, width)
        # im_info may tell the scale of the height and, behind it, that of the width.
        least = param.min_size * np.array([scale[-1], scale[0]])
        large = (boxes[:, 2:] - boxes[:, :2] + 1 >= least).all(axis=1)
        # Too small a box is the last choice, but one.
        chances = anchors.by_anchor(scores[:, len(first) :], 1)[:, 0] * large
        order = np.argsort(-chances, kind="stable")[: param.pre_nms_topn]
        kept = order[anchors.suppress(boxes[order], param.nms_thresh, param.post_nms_topn)]
        return boxes[kept], chances[kept]
