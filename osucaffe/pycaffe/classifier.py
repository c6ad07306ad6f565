"""Classifier: images in, scores of classes out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .image_input import Cropped, ImageNet
from .io import Extents


class Classifier(Cropped, ImageNet):
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
        super().__init__(
            model_file,
            pretrained_file,
            mean=mean,
            input_scale=input_scale,
            raw_scale=raw_scale,
            channel_swap=channel_swap,
        )
        self.crop_to_input(image_dims)

    def predict(self, inputs: Sequence[np.ndarray], oversample: bool = True) -> np.ndarray:
        """The scores (images x classes) of images (height, width, channels).

        oversample: average over ten crops: corners, centre, and their mirror images.
        """
        self.scale_as_trained(self.enter_as_trained(inputs))
        parts = [self.entered(image, oversample=oversample) for image in inputs]
        return self.score(parts, oversample=oversample)

    def score(self, entered: Sequence[np.ndarray], *, oversample: bool) -> np.ndarray:
        """The scores (images x classes) of images that `entered` gave."""
        data = np.concatenate(entered)
        scores = self.forward_all(**{self.inputs[0]: data})[self.outputs[0]]
        if oversample:
            scores = scores.reshape((len(entered), 10, -1)).mean(axis=1)
        return scores
