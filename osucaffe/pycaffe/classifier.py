"""Owns Classifier: a net with one image input that predicts classes of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import UserError
from .io import Extents, Transformer, oversample, resize_image
from .net import Net
from .proto import caffe_pb2


class Preprocessing:
    """How images enter a net's only input: what the Transformer's setters of these names do."""

    def __init__(
        self,
        net: Net,
        mean: np.ndarray | None,
        input_scale: float | None,
        raw_scale: float | None,
        channel_swap: Sequence[int] | None,
    ) -> None:
        if len(net.inputs) != 1:
            raise UserError(
                f"a net that images enter has one input, not {len(net.inputs)}: give its deploy "
                "prototxt, which begins with an Input layer"
            )
        self.input = net.inputs[0]
        self.transformer = Transformer({name: net.blobs[name].data.shape for name in net.inputs})
        self.transformer.set_transpose(self.input, (2, 0, 1))
        if mean is not None:
            self.transformer.set_mean(self.input, mean)
        if input_scale is not None:
            self.transformer.set_input_scale(self.input, input_scale)
        if raw_scale is not None:
            self.transformer.set_raw_scale(self.input, raw_scale)
        if channel_swap is not None:
            self.transformer.set_channel_swap(self.input, channel_swap)
        self.crop_dims = np.array(net.blobs[self.input].data.shape[2:])

    def __call__(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """All images as one array for `Net.forward_all`."""
        return np.array([self.transformer.preprocess(self.input, image) for image in images])


class Classifier(Net):
    """A net in its TEST phase that classifies images.

    image_dims: (height, width) that images are scaled to before they are cropped to the input
    (default: the input's own). mean, input_scale, raw_scale, channel_swap: see io.Transformer.
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
        super().__init__(model_file, caffe_pb2.TEST, weights=pretrained_file)
        self.preprocess = Preprocessing(self, mean, input_scale, raw_scale, channel_swap)
        self.transformer = self.preprocess.transformer
        self.crop_dims = self.preprocess.crop_dims
        self.image_dims = self.crop_dims if image_dims is None else image_dims
        if any(image < crop for image, crop in zip(self.image_dims, self.crop_dims, strict=True)):
            raise UserError(
                f"image_dims {tuple(self.image_dims)} must not be smaller than the net's input "
                f"{tuple(map(int, self.crop_dims))}, which is cropped from it"
            )

    def predict(self, inputs: Sequence[np.ndarray], oversample: bool = True) -> np.ndarray:
        """The scores (images x classes) of images (height, width, channels).

        oversample: average over ten crops: corners, centre, and their mirror images.
        """
        images = [resize_image(image, self.image_dims) for image in inputs]
        if oversample:
            crops = list(_ten_crops(images, self.crop_dims))
        else:
            crops = [_centre(image, self.crop_dims) for image in images]
        data = self.preprocess(crops)
        scores = self.forward_all(**{self.inputs[0]: data})[self.outputs[0]]
        if oversample:
            scores = scores.reshape((len(images), 10, -1)).mean(axis=1)
        return scores


_ten_crops = oversample


def _centre(image: np.ndarray, extents: np.ndarray) -> np.ndarray:
    height, width = (int(extent) for extent in extents)
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]
