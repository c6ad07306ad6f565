"""Owns what ImageGtData and DetectionData share: images cut about objects, and their maps."""

from __future__ import annotations

import numpy as np

from ..backends.tensor import Shape
from ..data.augment import distort
from ..data.object_crops import Picture, choose_centre, place, zoomed
from .base import Arrays
from .field_maps import Rules, field_maps
from .object_data import ObjectData, join_objects


class TrainingData(ObjectData):
    """Images of one size, maps of fields (`field_maps.py`) and, if asked for, rows of objects."""

    rules: Rules
    columns = 8
    nothing: tuple[int, ...] = (-1,) * 8
    scale = 1.0

    def setup(self, bottom: list[Shape]) -> list[Shape]:
        shapes = super().setup(bottom)
        self.reshapes = self.setting.output_gt_boxes or not self.fixed()
        return shapes

    def fixed(self) -> bool:
        """Whether all images have one size."""
        raise NotImplementedError

    def extents(self, picture: Picture, ratio: float) -> tuple[int, int]:
        """Height and width of a batch that begins with this picture."""
        raise NotImplementedError

    def resized(self, picture: Picture, ratio: float) -> Picture:
        raise NotImplementedError

    def zoom(self, box: np.ndarray | None, generator: np.random.Generator) -> np.ndarray:
        """By how much width and height are to grow about an object."""
        raise NotImplementedError

    def read_fields(self, strides: list[int]) -> list[tuple[int, int, int]]:
        param = self.setting
        if not len(strides) == len(param.field_w) == len(param.field_h):
            self.fail(f"{self.name_of}.field_w", "must be as many as field_h, and as the strides")
        return list(zip(param.field_w, param.field_h, strides, strict=True))

    def ratio(self, position: int) -> float:
        """What the sizes of a batch are multiplied by."""
        return 1.0

    def make(self, position: int) -> Arrays:
        param, ratio = self.setting, self.ratio(position)
        extents, images, maps, objects = None, list[np.ndarray](), [], []
        for i in range(param.batch_size):
            picture, generator = self.picture(position + i)
            picture = self.resized(self.varied(picture, generator), ratio)
            extents = extents or self.extents(picture, ratio)
            chosen, centre = choose_centre(picture, extents, generator)
            box = None if chosen is None else picture.objects[chosen, 3:]
            picture, centre = zoomed(picture, centre, self.zoom(box, generator))
            placed = place(picture, centre, extents, generator)
            self._ignore(placed.picture.objects, extents)
            x, y, width, height = placed.inside
            image = np.zeros((placed.part.shape[2], *extents), np.float32)
            image[:, y : y + height, x : x + width] = self.pixels(placed.part, self.scale)
            images.append(image)
            maps.append(field_maps(placed, extents, self.rules))
            objects.append(placed.picture.objects)
        arrays = [np.stack(images), *(np.stack(each) for each in zip(*maps, strict=True))]
        if param.output_gt_boxes:
            arrays.append(join_objects(objects, self.columns, self.nothing))
        return arrays

    def varied(self, picture: Picture, generator: np.random.Generator) -> Picture:
        """Of other colours, and perhaps mirrored."""
        param = self.setting
        if "distort_param" in param.DESCRIPTOR.fields_by_name and param.HasField("distort_param"):
            picture = picture._replace(image=distort(picture.image, param.distort_param, generator))
        if self.param.transform_param.mirror and generator.integers(2):
            picture = picture.mirrored()
        return picture

    def _ignore(self, objects: np.ndarray, extents: tuple[int, int]) -> None:
        """Mark those that are too small, or whose middle is not in the image."""
        middles = (objects[:, 3:5] + objects[:, 5:]) / 2
        away = (middles < 0).any(axis=1) | (middles >= extents[::-1]).any(axis=1)
        sizes = objects[:, 5:] - objects[:, 3:5] + 1
        least = [self.setting.min_gt_width, self.setting.min_gt_height]
        objects[away | (sizes < least).any(axis=1), 1] = 1
