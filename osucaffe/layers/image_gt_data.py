"""Owns ImageGtData, which MS-CNN learns from (zhaoweicai/mscnn's image_gt_data_layer.cpp)."""

from __future__ import annotations

import math

import numpy as np

from ..backends.tensor import Shape
from ..data.object_crops import Picture, whole
from .base import register
from .field_maps import Rules
from .training_data import TrainingData


@register("ImageGtData")
class ImageGtData(TrainingData):
    """Images of a list, cut about an object, and maps of what fields match (MS-CNN)."""

    messages = ("image_gt_data_param", "transform_param")
    difficult = False
    columns = 7
    nothing = (0, 1, 1, 2, 2, 1, 1)

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        param = self.param.image_gt_data_param
        self.setting, self.name_of = param, "image_gt_data_param"
        self.shuffle = "random" if param.shuffle else ""
        self.repeats, self.scale = max(1, param.fg_img_multiple), param.scale
        fields = self.read_fields(list(param.downsample_rate))
        self.rules = Rules(fields, edges=True, foreground=param.fg_threshold)
        return super().setup(bottom)

    def fixed(self) -> bool:
        return bool(self.setting.resize_width or self.setting.crop_width)

    def extents(self, picture: Picture, ratio: float) -> tuple[int, int]:
        param, (height, width) = self.setting, picture.image.shape[:2]
        return (param.crop_height or height, param.crop_width or width)

    def resized(self, picture: Picture, ratio: float) -> Picture:
        param = self.setting
        if not (param.resize_width and param.resize_height):
            return picture
        return picture.resized(param.resize_height, param.resize_width)

    def zoom(self, box: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
        """By half octaves between the scales, from the object's own on."""
        param, scale = self.setting, np.ones(2)
        multiple = param.do_multiple_scale and param.min_scale and param.max_scale
        if box is None or not multiple or not generator.integers(2):
            return scale
        steps = np.arange(whole(2 * math.log2(param.max_scale / param.min_scale) + 1)) / 2
        width, height = np.maximum(box[2:] - box[:2], 1e-3)
        areas = (param.min_scale * 2.0**steps) ** 2
        near = np.minimum(areas, width * height) / np.maximum(areas, width * height)
        scale *= 2.0 ** (generator.choice(steps) - steps[near.argmax()])
        turned = param.HasField("min_whaspect") and param.HasField("max_whaspect")
        if turned and generator.integers(2):
            count = max(1, whole((param.max_whaspect - param.min_whaspect) / 0.05))
            aspect = generator.integers(count) * 0.05 + param.min_whaspect
            growth = aspect / (width / height)
            axis = int(generator.integers(2))
            factor = (growth, 1 / growth)[axis]
            target = (width, height)[axis] * scale[axis] * factor
            if param.min_scale * 0.8 <= target <= param.max_scale * 1.2:
                scale[axis] *= factor
        return scale
