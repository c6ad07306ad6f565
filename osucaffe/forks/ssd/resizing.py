"""resize_param: the size of images before they enter the net, and their boxes' (SSD)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...data.pictures.resample import resample
from ...data.pictures.transform import Fail
from ..annotations import Annotations

_EDGES = {"MIRRORED": "reflect", "REPEAT_NEAREST": "edge"}
"""NumPy's names for the padding of an image that is smaller than its target. OpenCV repeats the
edge for MIRRORED where the image is smaller than the border."""


class Resizing:
    """The settings of a ResizeParameter. fail: as for Transform."""

    def __init__(self, param: Any, fail: Fail) -> None:
        self.param = param
        self.mode = param.Resize_mode.Name(param.resize_mode)
        self.height, self.width = param.height, param.width
        self._modes = [param.Interp_mode.Name(mode) for mode in param.interp_mode] or ["LINEAR"]
        self._padding = param.Pad_mode.Name(param.pad_mode)
        if not self.height or not self.width:
            fail("transform_param.resize_param", "needs height and width")
        if len(param.pad_value) not in (0, 1, 3):
            fail("transform_param.resize_param.pad_value", "give none, one or three")

    @property
    def varies(self) -> bool:
        """Whether the resulting sizes differ."""
        return self.mode == "FIT_SMALL_SIZE"

    def extents(self, height: int, width: int) -> tuple[int, int]:
        """The resized height and width of an image of this size, without padding."""
        wide = width / height > self.width / self.height
        if self.mode == "WARP":
            return self.height, self.width
        if wide == (self.mode == "FIT_LARGE_SIZE_AND_PAD"):
            return max(1, math.floor(self.width * height / width)), self.width
        return self.height, max(1, math.floor(self.height * width / height))

    def image(self, image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """A uint8 image (height, width, channels), resized."""
        mode = self._modes[generator.integers(len(self._modes)) if len(self._modes) > 1 else 0]
        small = resample(image, *self.extents(*image.shape[:2]), mode)
        if self.mode != "FIT_LARGE_SIZE_AND_PAD":
            return small
        lacking = self.height - small.shape[0], self.width - small.shape[1]
        borders = [(missing // 2, missing - missing // 2) for missing in lacking]
        if self._padding != "CONSTANT":
            return np.pad(small, [*borders, (0, 0)], mode=_EDGES[self._padding])  # type: ignore[call-overload]
        values = list(self.param.pad_value) or [0]
        padded = np.empty((self.height, self.width, small.shape[2]), np.uint8)
        padded[...] = values * small.shape[2] if len(values) == 1 else values
        (top, _), (left, _) = borders
        padded[top : top + small.shape[0], left : left + small.shape[1]] = small
        return padded

    def annotations(self, annotations: Annotations, height: int, width: int) -> Annotations:
        """The objects of an image of this size, in fractions of the resized one with its borders.

        As in the fork, with borders of fractions of pixels, and no rounding of the image's extent.
        """
        if self.mode != "FIT_LARGE_SIZE_AND_PAD":
            return annotations
        target = np.array([self.width, self.height], np.float64)
        aspect = width / height
        inner = target.copy()
        if aspect > self.width / self.height:
            inner[1] = self.width / aspect
        else:
            inner[0] = self.height * aspect
        share, border = np.tile(inner / target, 2), np.tile((target - inner) / 2 / target, 2)
        return annotations._replace(boxes=annotations.boxes * share + border)
