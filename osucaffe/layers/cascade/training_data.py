"""Owns DetectionData, which Cascade R-CNN learns from (its detection_data_layer.cpp)."""

from __future__ import annotations

import math

import numpy as np

from ..backends.tensor import Shape
from ..data.object_crops import Picture, whole
from .base import register
from .field_maps import Rules
from .training_data import TrainingData


@register("DetectionData")
class DetectionData(TrainingData):
    """Images of a list, cut about an object, and maps of what fields match (Cascade R-CNN)."""

    messages = ("detection_data_param", "transform_param")

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param, name = self.param.detection_data_param, "detection_data_param"
        self.setting, self.name_of = param, name
        self.shuffle = param.shuffle if param.HasField("shuffle") else ""
        if self.shuffle not in ("", "random", "random_aspect", "random_mix_aspect"):
            self.fail(f"{name}.shuffle", "must be random, random_aspect or random_mix_aspect")
        self.group, self.scale = max(1, param.mix_group_size), self.param.transform_param.scale
        has = param.HasField
        self.rules = Rules(
            self.read_fields(list(param.stride)), edges=False, foreground=param.fg_threshold,
            of_no_interest=param.ignore_fg_threshold, pick_up=param.pickup_iou_thr,
            margin=param.anchor_ignore_margin_ratio if has("anchor_ignore_margin_ratio") else None,
            least_inside=param.anchor_ignore_iou_thr if has("anchor_ignore_iou_thr") else None,
        )  # fmt: skip
        return super().setup(bottom)

    def fixed(self) -> bool:
        param = self.setting
        return bool((param.crop_width and param.crop_height) or
                    (param.resize_width and param.resize_height))  # fmt: skip

    def ratio(self, position: int) -> float:
        ratios = self.setting.template_ratio
        draw = np.random.default_rng([self.seed, self.key, position, 1])
        return float(draw.choice(ratios)) if ratios else 1.0

    def extents(self, picture: Picture, ratio: float) -> tuple[int, int]:
        param, (height, width) = self.setting, picture.image.shape[:2]
        if param.crop_width and param.crop_height:
            return param.crop_height, param.crop_width
        sides = (height, width)
        if param.crop_short_size and param.crop_long_size:
            sides = (param.crop_long_size, param.crop_short_size)
        elif param.resize_width and param.resize_height:
            return param.resize_height, param.resize_width
        elif param.short_size and param.long_size:
            long, short = (
                whole(side * ratio / 32) * 32 for side in (param.long_size, param.short_size)
            )
            sides = (long, short)
        else:
            return sides
        return sides if height >= width else sides[::-1]

    def resized(self, picture: Picture, ratio: float) -> Picture:
        param, (height, width) = self.setting, picture.image.shape[:2]
        if param.resize_width and param.resize_height:
            return picture.resized(param.resize_height, param.resize_width)
        scale = param.resize_ratio or 1.0
        if not param.resize_ratio and param.short_size and param.long_size:
            scale = whole(param.short_size * ratio / 32) * 32 / min(height, width)
        return picture.resized(whole(height * scale), whole(width * scale))

    def zoom(self, box: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
        """By any factor between two, or between those that give the object two sizes."""
        param, has = self.setting, self.setting.HasField
        if has("low_scale_ratio") and has("high_scale_ratio"):
            limits = [param.low_scale_ratio, param.high_scale_ratio]
        elif has("min_scale") and has("max_scale"):
            size = 0.0 if box is None else math.sqrt(np.prod(box[2:] - box[:2] + 1))
            limits = [param.min_scale / size, param.max_scale / size] if size else [2.0, 2.0]
        else:
            return np.ones(2)
        if generator.random() >= param.multiscale_prob:
            return np.ones(2)
        scale = np.full(2, 2 ** generator.uniform(*np.log2(limits)))
        if has("min_whaspect") and has("max_whaspect"):
            aspects = np.log2([param.min_whaspect, param.max_whaspect])
            root = math.sqrt(2 ** generator.uniform(*aspects))
            scale *= [root, 1 / root]
        return scale
