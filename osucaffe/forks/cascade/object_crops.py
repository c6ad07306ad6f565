"""Mirroring, resizing, zooming and cropping of images around one of their objects.

As zhaoweicai/mscnn's image_gt_data_layer.cpp and zhaoweicai/cascade-rcnn's
detection_data_layer.cpp do it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...data.pictures.image import resize, whole


class Picture(NamedTuple):
    """A uint8 image (height, width, channels), objects (G, 7) and regions (R, 4) in its pixels."""

    image: np.ndarray
    objects: np.ndarray
    regions: np.ndarray

    def moved(self, image: np.ndarray, scale: Any, shift: Any) -> Picture:
        """With another image, in which positions are scale * (x, y) + shift."""
        factors, offsets = np.tile(scale, 2), np.tile(shift, 2)
        objects = self.objects.copy()
        objects[:, 3:] = objects[:, 3:] * factors + offsets
        return Picture(image, objects, self.regions * factors + offsets)

    def mirrored(self) -> Picture:
        width = self.image.shape[1]
        turned = self.moved(self.image[:, ::-1], (-1, 1), (width, 0))
        turned.objects[:, [3, 5]] = turned.objects[:, [5, 3]]
        turned.regions[:, [0, 2]] = turned.regions[:, [2, 0]]
        return turned

    def resized(self, height: int, width: int) -> Picture:
        before = self.image.shape
        if before[:2] == (height, width):
            return self
        image = resize(np.ascontiguousarray(self.image), height, width)
        return self.moved(image, (width / before[1], height / before[0]), (0, 0))


def choose_centre(
    picture: Picture, extents: tuple[int, int], generator: np.random.Generator
) -> tuple[int | None, np.ndarray]:
    """An object, and its centre x and y; without any, None, and a point where a crop would fit."""
    if len(picture.objects):
        chosen = int(generator.integers(len(picture.objects)))
        box = picture.objects[chosen, 3:]
        return chosen, (box[:2] + box[2:]) / 2
    centre = []
    for side, extent in zip(picture.image.shape[1::-1], extents[::-1], strict=True):
        free = side - extent
        centre.append(generator.integers(free + 1) + extent / 2 if free >= 0 else side / 2)
    return None, np.array(centre)


def zoomed(picture: Picture, centre: np.ndarray, scale: np.ndarray) -> tuple[Picture, np.ndarray]:
    """The picture at `scale` (of width, height), and the new position of the centre.

    One that would grow by more than a half is cropped around the centre first.
    """
    if (scale == 1).all():
        return picture, centre
    sides = np.array(picture.image.shape[1::-1])
    if (scale > 1.5).any():
        cut = np.minimum([whole(1.2 * a / b) for a, b in zip(sides, scale, strict=True)], sides)
        corner = np.maximum([whole(a - b * 0.5) for a, b in zip(centre, cut, strict=True)], 0)
        corner -= np.maximum(corner + cut - sides, 0)
        (left, top), (width, height) = corner, cut
        image = picture.image[top : top + height, left : left + width]
        picture, centre, sides = picture.moved(image, (1, 1), -corner), centre - corner, cut
    width, height = (max(1, whole(a * b)) for a, b in zip(sides, scale, strict=True))
    image = resize(np.ascontiguousarray(picture.image), height, width)
    return picture.moved(image, scale, (0, 0)), centre * scale


class Placed(NamedTuple):
    """A picture in a template: its position there (x, y, width, height) and the visible part."""

    picture: Picture
    inside: tuple[int, int, int, int]
    part: np.ndarray
    """The pixels that are in the template."""


def place(
    picture: Picture, centre: np.ndarray, extents: tuple[int, int], generator: np.random.Generator
) -> Placed:
    """Crop a picture around a centre, or put it in the middle of the template, give or take 10."""
    begins, ends, lengths = [], [], []
    noise = generator.integers(20, size=2) - 10
    for i, (side, extent) in enumerate(zip(picture.image.shape[1::-1], extents[::-1], strict=True)):
        gap = extent - side
        into = min(max(0, whole(gap / 2) + int(noise[i])), gap) if gap > 0 else 0
        begin = whole(centre[i]) + int(noise[i]) - whole(extent / 2)
        begins.append(into)
        ends.append(min(max(0, begin), -gap) if gap < 0 else 0)
        lengths.append(min(side, extent))
    shift = np.array(begins) - ends
    part = picture.image[ends[1] : ends[1] + lengths[1], ends[0] : ends[0] + lengths[0]]
    inside = (begins[0], begins[1], lengths[0], lengths[1])
    return Placed(picture.moved(picture.image, (1, 1), shift), inside, part)
