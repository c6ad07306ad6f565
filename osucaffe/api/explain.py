"""Pictures of the regions that a label depends on, by covering each part of an image in turn
(Zeiler and Fergus, Visualizing and Understanding Convolutional Networks, 2014)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..data.pictures.image import resize
from ..net import Net
from .images import to_image

if TYPE_CHECKING:
    from PIL.Image import Image

_STEPS, _COVERED = 12, 0.25
"""Places along each side, and the share of it that is covered."""
_EPSILON, _MIN_FALL = 1e-7, 0.1
"""What is added to probabilities, and the least fall that is shown in full red."""
_SHOWN = 224
"""Height and width of each of the two pictures."""


class Explainer:
    """Makes pictures: what entered the net, and where the score of its best label falls when the
    place is covered (red: most). net: one to classify with."""

    def __init__(self, net: Net) -> None:
        self._net = Net(net.param, backend=net.backend, phase="TEST", share=net, inference=True)

    def picture(self, image: np.ndarray) -> Image:
        """That of an image (channels, height, width) as it enters the net."""
        extents = np.array(image.shape[1:])
        sides = np.maximum(1, (extents * _COVERED).round().astype(int))
        places = [
            np.linspace(0, extent - side, _STEPS).round().astype(int)
            for extent, side in zip(extents, sides, strict=True)
        ]
        parts = [
            (slice(top, top + sides[0]), slice(left, left + sides[1]))
            for top in places[0]
            for left in places[1]
        ]
        covered = np.repeat(image[None], 1 + len(parts), axis=0)
        for row, (down, across) in zip(covered[1:], parts, strict=True):
            row[:, down, across] = image.mean(axis=(1, 2), keepdims=True)
        scores = self._scores(covered)
        best = int(scores[0].argmax())
        values = scores[:, best].astype(np.float64)
        if 0 <= scores.min() <= scores.max() <= 1:  # of probabilities the logarithms of the odds
            values = np.log(values + _EPSILON) - np.log(1 - values + _EPSILON)
        fall, count = np.zeros(image.shape[1:]), np.zeros(image.shape[1:])
        for value, part in zip(values[1:], parts, strict=True):
            fall[part] += values[0] - value
            count[part] += 1
        heat = (fall / np.maximum(count, 1)).clip(0, None)
        heat /= max(heat.max(), _MIN_FALL)
        low, high = image.min(), image.max()
        shown = (image - low) / max(high - low, 1e-9) * 255
        shown = np.repeat(shown, 3, axis=0) if len(shown) == 1 else shown
        red = np.array([0, 0, 255])[:, None, None]
        pair = [shown, shown * (1 - heat) + red * heat]
        planes = [
            resize(np.ascontiguousarray(each.transpose(1, 2, 0).astype(np.uint8)), _SHOWN, _SHOWN)
            for each in pair
        ]
        return to_image(np.concatenate(planes, axis=1).transpose(2, 0, 1))

    def _scores(self, images: np.ndarray) -> np.ndarray:
        """The outputs (images, classes) for images."""
        net, (name,), output = self._net, self._net.inputs, self._net.outputs[0]
        batch = np.zeros(net.blobs[name].shape, np.float32)
        scores = []
        for first in range(0, len(images), len(batch)):
            some = images[first : first + len(batch)]
            batch[: len(some)] = some
            net.write(name, batch)
            net.forward()
            scores.append(np.array(net.read(output)).reshape(len(batch), -1)[: len(some)])
        return np.concatenate(scores)
