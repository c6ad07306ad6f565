"""Owns what layers share that read boxes, or whose top has a row for each box of an image."""

from __future__ import annotations

import math
from typing import Any

from ..proto import caffe_pb2
from .base import Blob, Layer, Shapes, Tensor


class Boxes(Layer):
    """What layers share that read SSD's boxes: bottoms of codes, scores and priors."""

    def lay_out_boxes(self, bottom: Shapes, field: str) -> None:
        """Set `location_shape` (N, P, L, 4), `confidence_shape` (N, P, C) and `prior_shape`."""
        param = getattr(self.param, field)
        if not param.num_classes:
            self.fail(f"{field}.num_classes", "is missing: set it to the classes and background")
        items, priors = bottom[0][0], math.prod(bottom[2][2:]) // 4
        boxes = 1 if param.share_location else param.num_classes
        self.location_shape = (items, priors, boxes, 4)
        self.confidence_shape = (items, priors, param.num_classes)
        self.prior_shape = (2, priors, 4)
        wanted = (self.location_shape, self.confidence_shape, self.prior_shape)
        for i, (shape, needed) in enumerate(zip(bottom, wanted, strict=False)):
            if math.prod(shape) != math.prod(needed):
                self.fail(
                    f"bottom[{i}]",
                    f"has shape {shape}, but {items} items, {priors} priors and "
                    f"{param.num_classes} classes need {needed}",
                )

    def coding(self, param: Any, scaled: bool) -> dict[str, Any]:
        """How boxes are coded, as settings of primitives."""
        return {
            "coding": caffe_pb2.PriorBoxParameter.CodeType.Name(param.code_type),
            "scaled": scaled,
        }


class Rows(Boxes):
    """A layer whose top has as many rows as there happen to be: the blob's `length` tells them.

    The top is as long as it may become, and its rows behind are -1; `Net.read` leaves them out.
    """

    def open_rows(self, top: Blob) -> tuple[Tensor, Tensor]:
        """The rows of the top, and where their number goes."""
        top.keep_exact()
        top.length = self.tensor((1,), persistent=True)
        return top.data.view(top.shape[2:]), top.length
