"""SSD's DetectionOutput and DetectionEvaluate, and Cascade R-CNN's form of the latter:
boxes in pixels, in images of the sizes of a file."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from ...files import read_file
from ...layers.base import Blobs, LayerClass, Program, Shapes, register
from ...parsing import as_float, lines_of
from .. import anchors
from ..boxes import match_detections
from ..rows import Rows, put_rows
from . import primitives as ops

ROOM = 4096
"""How many boxes there may be in a batch."""

log = logging.getLogger("osucaffe")


class PixelEvaluate(Rows):
    """Which rows of FrcnnOutput are true, against truth bottom[1]; bottom[2]: height and width."""

    type = "DetectionEvaluate"
    bottoms = (3, 3)
    no_gradient = (0, 1, 2)
    images = 0
    """How many with boxes there have been."""

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.detection_evaluate_param
        for i, width in enumerate((7, 8, 2)):
            if math.prod(bottom[i][1:]) != width:
                self.fail(f"bottom[{i}]", f"has shape {bottom[i]}, but needs rows of {width}")
        if param.num_classes < 2:
            self.fail("detection_evaluate_param.num_classes", "must be at least 2")
        self.sizes = self._read_sizes(param.name_size_file)
        return [(1, 1, param.num_classes - 1 + ROOM, 5)]

    def _read_sizes(self, path: str) -> np.ndarray:
        """Height and width of each image, from lines of name, height and width."""
        try:
            lines = lines_of(read_file(path)) if path else []
        except OSError as error:
            log.warning(
                "%s, detection_evaluate_param.name_size_file: %s cannot be read (%s): boxes are "
                "compared as they are in the net's input", self.title, path, error.strerror,
            )  # fmt: skip
            return np.zeros((0, 2))
        try:
            rows = [
                [as_float(word) for word in line.split()[-2:]] for line in lines if line.strip()
            ]
            return np.array(rows).reshape(-1, 2)
        except ValueError:
            self.fail("detection_evaluate_param.name_size_file",
                      f"{path} must have lines of name, height and width")  # fmt: skip

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        rows = list(self.open_rows(top[0]))
        program.host([blob.data for blob in bottom], rows, function=self._run)

    def _run(self, reads: list[np.ndarray], writes: list[np.ndarray]) -> None:
        param = self.param.detection_evaluate_param
        boxes, ground_truth, extents = (x.reshape(len(x), -1).astype(np.float64) for x in reads)
        ground_truth = ground_truth[ground_truth[:, 0] >= 0]
        counted = (
            ground_truth if param.evaluate_difficult_gt else ground_truth[ground_truth[:, 7] == 0]
        )
        labels = range(1, param.num_classes)
        counts = [[-1.0, k, (counted[:, 5] == k).sum(), -1, -1] for k in labels]
        parts = [np.array(counts)]
        for image in np.unique(boxes[boxes[:, 0] >= 0, 0]):
            ratio = np.ones(2)
            if len(self.sizes):
                ratio = self.sizes[self.images % len(self.sizes)] / extents[int(image)]
                self.images += 1
            for label in np.unique(boxes[(boxes[:, 0] == image) & (boxes[:, 5] > 0), 5]):
                detections, true = (
                    rows[(rows[:, 0] == image) & (rows[:, 5] == label)]
                    for rows in (boxes, ground_truth)
                )
                parts.append(self._judged(detections, true, np.tile(ratio[::-1], 2)))
        rows = np.concatenate(parts)
        if len(rows) > len(writes[0]):
            self.fail("bottom[0]", f"has more than {ROOM} boxes: set max_det_num in FrcnnOutput")
        put_rows(rows, writes)

    def _judged(self, boxes: np.ndarray, ground_truth: np.ndarray, ratio: np.ndarray) -> np.ndarray:
        """image, label, score, true, false of the boxes of one image and label."""
        param = self.param.detection_evaluate_param
        if len(ground_truth):
            boxes = boxes[np.argsort(-boxes[:, 6], kind="stable")]
        shared = anchors.iou(boxes[:, 1:5] * ratio, ground_truth[:, 1:5] * ratio, strict=True)
        skipped = (ground_truth[:, 7] != 0) & (not param.evaluate_difficult_gt)
        verdict = match_detections(shared, skipped, param.overlap_threshold)
        return np.concatenate([boxes[:, [0, 5, 6]], verdict], axis=1)


@register("DetectionOutput")
class DetectionOutput(Rows):
    """The boxes to report: by class the best that do not overlap, as rows of 7 numbers."""

    bottoms = (3, 4)
    no_gradient = (0, 1, 2, 3)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.detection_output_param
        self.lay_out_boxes(bottom, "detection_output_param")
        suppression, keep = param.nms_param, param.keep_top_k
        top_k = suppression.top_k if suppression.HasField("top_k") else -1
        self.settings: dict[str, Any] = {
            "background": param.background_label_id,
            "least": param.confidence_threshold if param.HasField("confidence_threshold") else None,
            "threshold": suppression.nms_threshold,
            "eta": suppression.eta,
            "top_k": top_k,
            "keep": keep,
        }
        if suppression.nms_threshold < 0 or not 0 < suppression.eta <= 1:
            self.fail("detection_output_param.nms_param", "nms_threshold must be at least 0, and "
                      "eta above 0 and at most 1")  # fmt: skip
        if param.save_output_param.output_directory or param.visualize:
            log.warning(
                "%s, detection_output_param: save_output_param and visualize write no files while "
                "the net runs; osucaffe test --results DIR writes those of save_output_param",
                self.title,
            )
        items, priors, classes = self.confidence_shape
        most = classes * (min(priors, top_k) if top_k >= 0 else priors)
        return [(1, 1, items * max(1, min(most, keep) if keep >= 0 else most), 7)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        param = self.param.detection_output_param
        bottom[2].keep_exact()
        boxes = self.tensor(self.location_shape)
        program.record(ops.DecodeBoxes(
            bottom[0].data.view(self.location_shape), bottom[2].data.view(self.prior_shape), boxes,
            **self.coding(param, not param.variance_encoded_in_target),
        ))  # fmt: skip
        confidence = bottom[1].data.view(self.confidence_shape)
        program.record(ops.DetectBoxes(boxes, confidence, *self.open_rows(top[0]), **self.settings))


@register("DetectionEvaluate")
class DetectionEvaluate(Rows):
    """Which rows of DetectionOutput are true, against truth bottom[1]: for `test --detection`."""

    bottoms = (2, 2)
    no_gradient = (0, 1)

    @classmethod
    def form(cls, param: Any) -> LayerClass:
        """SSD's; Cascade R-CNN's has a third bottom."""
        return PixelEvaluate if len(param.bottom) == 3 else cls

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.detection_evaluate_param
        for i, width in enumerate((7, 8)):
            self.check_bottom(bottom, i, (*bottom[i][:-1], width), ": rows of so many numbers")
        if not param.num_classes:
            self.fail("detection_evaluate_param.num_classes", "is missing")
        if param.name_size_file:
            log.warning(
                "%s, detection_evaluate_param.name_size_file: not read; overlaps are of boxes in "
                "fractions of the image, not of whole pixels", self.title,
            )  # fmt: skip
        self.shapes = [(math.prod(shape[:-1]), shape[-1]) for shape in bottom]
        labels = [n for n in range(param.num_classes) if n != param.background_label_id]
        return [(1, 1, len(labels) + self.shapes[0][0], 5)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        param = self.param.detection_evaluate_param
        detections, ground_truth = (
            b.data.view(s) for b, s in zip(bottom, self.shapes, strict=True)
        )
        program.record(ops.EvaluateBoxes(
            detections, ground_truth, *self.open_rows(top[0]), classes=param.num_classes,
            background=param.background_label_id, threshold=param.overlap_threshold,
            difficult=param.evaluate_difficult_gt,
        ))  # fmt: skip
