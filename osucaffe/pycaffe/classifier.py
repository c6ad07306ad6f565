"""Owns Classifier: images in, scores of classes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import UserError
from .image_input import ImageNet, centre
from .io import Extents, oversample, resize_image


class Classifier(ImageNet):
    """A net in its TEST phase that classifies images.

    image_dims: (height, width) that images are scaled to before they are cropped to the input
    (default: the input's own). mean, input_scale, raw_scale, channel_swap: see io.Transformer;
    where none of them is given or set, images enter as they did in training, as far as the file of
    weights tells.
    """

    def __init__(
        self,
        model_file: str | Path,
        pretrained_file: str | Path,
        image_dims: Extents | None = None,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model_file, pretrained_file, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = self.preprocess.extents
        self._own_dims = image_dims is None
        self.image_dims = self.crop_dims if image_dims is None else image_dims
        if any(image < crop for image, crop in zip(self.image_dims, self.crop_dims, strict=True)):
            raise UserError(
                f"image_dims {tuple(self.image_dims)} must not be smaller than the net's input "
                f"{tuple(map(int, self.crop_dims))}, which is cropped from it"
            )

    def scale_as_trained(self, extents: Extents | None) -> None:
        """Unless image_dims were given, scale images to what they had before they were cropped in
        training, where that is known."""
        if (
            self._own_dims
            and extents is not None
            and not (np.array(extents) < self.crop_dims).any()
        ):
            self.image_dims = np.array(extents)

    def predict(self, inputs: Sequence[np.ndarray], oversample: bool = True) -> np.ndarray:
        """The scores (images x classes) of images (height, width, channels).

        oversample: average over ten crops: corners, centre, and their mirror images.
        """
        self.scale_as_trained(self.enter_as_trained(inputs))
        parts = [self.entered(image, oversample=oversample) for image in inputs]
        return self.score(parts, oversample=oversample)

    def entered(self, image: np.ndarray, *, oversample: bool) -> np.ndarray:
        """An image (height, width, channels) as it enters the net: crops, (1 or 10, C, H, W)."""
        image = resize_image(image, self.image_dims)
        whole = not oversample
        crops = [centre(image, self.crop_dims)] if whole else _ten_crops([image], self.crop_dims)
        return self.preprocess(list(crops))

    def score(self, entered: Sequence[np.ndarray], *, oversample: bool) -> np.ndarray:
        """The scores (images x classes) of images that `entered` gave."""
        data = np.concatenate(entered)
        scores = self.forward_all(**{self.inputs[0]: data})[self.outputs[0]]
        if oversample:
            scores = scores.reshape((len(entered), 10, -1)).mean(axis=1)
        return scores


_ten_crops = oversample
