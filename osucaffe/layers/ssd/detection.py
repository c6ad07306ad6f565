"""Owns what comes out of an SSD: DetectionOutput, and DetectionEvaluate, which judges it."""

from __future__ import annotations

import logging
import math
from typing import Any

from ..base import Blobs, LayerClass, Program, Shapes, register
from ..rows import Rows
from .pixel_evaluate import PixelEvaluate

_log = logging.getLogger("osucaffe")


@register("DetectionOutput")
class DetectionOutput(Rows):
    """The boxes to report: by class the best that do not overlap, as rows of 7 numbers."""

    bottoms = (3, 4)
    no_gradient = (0, 1, 2, 3)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.detection_output_param
        self.lay_out_boxes(bottom, "detection_output_param")
        suppression = param.nms_param
        self.settings: dict[str, Any] = {
            "background": param.background_label_id,
            "least": param.confidence_threshold if param.HasField("confidence_threshold") else None,
            "threshold": suppression.nms_threshold,
            "eta": suppression.eta,
            "top_k": suppression.top_k if suppression.HasField("top_k") else -1,
            "keep": param.keep_top_k,
        }
        if suppression.nms_threshold < 0 or not 0 < suppression.eta <= 1:
            self.fail("detection_output_param.nms_param", "nms_threshold must be at least 0, and "
                      "eta above 0 and at most 1")  # fmt: skip
        if param.save_output_param.output_directory or param.visualize:
            _log.warning(
                "%s, detection_output_param: save_output_param and visualize write no files while "
                "the net runs; osucaffe test --results DIR writes those of save_output_param",
                self.title,
            )
        items, priors, classes = self.confidence_shape
        top_k, keep = self.settings["top_k"], self.settings["keep"]
        most = classes * (min(priors, top_k) if top_k >= 0 else priors)
        return [(1, 1, items * max(1, min(most, keep) if keep >= 0 else most), 7)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        param = self.param.detection_output_param
        bottom[2].keep_exact()
        boxes = self.tensor(self.location_shape)
        program.decode_boxes(
            bottom[0].data.view(self.location_shape), bottom[2].data.view(self.prior_shape), boxes,
            **self.coding(param, not param.variance_encoded_in_target),
        )  # fmt: skip
        confidence = bottom[1].data.view(self.confidence_shape)
        program.detect_boxes(boxes, confidence, *self.open_rows(top[0]), **self.settings)


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
            if bottom[i][-1:] != (width,):
                self.fail(f"bottom[{i}]", f"has shape {bottom[i]}, but needs rows of {width}")
        if not param.num_classes:
            self.fail("detection_evaluate_param.num_classes", "is missing")
        if param.name_size_file:
            _log.warning(
                "%s, detection_evaluate_param.name_size_file: not read; overlaps are of boxes in "
                "shares of the image, not of whole pixels",
                self.title,
            )
        self.shapes = [(math.prod(shape[:-1]), shape[-1]) for shape in bottom]
        labels = [n for n in range(param.num_classes) if n != param.background_label_id]
        return [(1, 1, len(labels) + self.shapes[0][0], 5)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        param = self.param.detection_evaluate_param
        found, truth = (b.data.view(s) for b, s in zip(bottom, self.shapes, strict=True))
        program.evaluate_boxes(
            found, truth, *self.open_rows(top[0]), classes=param.num_classes,
            background=param.background_label_id, threshold=param.overlap_threshold,
            difficult=param.evaluate_difficult_gt,
        )  # fmt: skip
