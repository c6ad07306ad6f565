"""Detector: a classifying net applied to windows of images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .image_input import ImageNet
from .io import load_image, resize_image


class Detector(ImageNet):
    """A net in its TEST phase that scores windows of images.

    context_pad: pixels of the net's input that show what surrounds a window. The other settings:
    see io.Transformer, and Classifier for where none is given.
    """

    def __init__(
        self,
        model_file: str | Path,
        pretrained_file: str | Path,
        mean: np.ndarray | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
    ) -> None:
        super().__init__(
            model_file,
            pretrained_file,
            mean=mean,
            input_scale=input_scale,
            raw_scale=raw_scale,
            channel_swap=channel_swap,
        )
        self.configure_crop(context_pad)

    def configure_crop(self, context_pad: int | None) -> None:
        """Set the context, and the mean colour that stands for what lies outside the image."""
        self.context_pad = context_pad or 0
        name = self.preprocess.name
        self.crop_mean = self.transformer.deprocess(
            name, np.zeros(self.transformer.inputs[name][1:], np.float32)
        )

    def detect_windows(
        self, images_windows: Iterable[tuple[str | Path, np.ndarray]]
    ) -> list[dict[str, Any]]:
        """Score windows (top, left, bottom, right), in pixels, of image files.

        Returns a dict for each window: its `window`, `prediction` (scores) and `filename`.
        """
        if not self.preprocess.is_set:
            self.enter_as_trained([])
            self.configure_crop(self.context_pad)
        detections = []
        crops = []
        for filename, windows in images_windows:
            image = load_image(filename, color=self.crop_mean.shape[2] > 1)
            for window in windows:
                crops.append(self.crop(image, window))
                detections.append({"window": window, "filename": filename})
        scores = self.forward_all(**{self.inputs[0]: self.preprocess(crops)})[self.outputs[0]]
        for detection, score in zip(detections, scores, strict=True):
            detection["prediction"] = score.squeeze()
        return detections

    def crop(self, im: np.ndarray, window: Sequence[float]) -> np.ndarray:
        """A window of an image at the net's input size, with its context.

        What lies beyond the image's border is filled with the mean colour.
        """
        size = self.preprocess.extents.astype(float)
        box = np.asarray(window, float)
        inner = size - 2 * self.context_pad
        if (inner <= 0).any():
            raise ValueError(f"context_pad {self.context_pad} leaves nothing of the input {size}")
        # Pixels of the image for a pixel of the input, along each axis; the box grows by the pad.
        ratio = np.maximum(box[2:] - box[:2], 1) / inner
        begin, end = box[:2] - self.context_pad * ratio, box[2:] + self.context_pad * ratio
        extents = np.array(im.shape[:2])
        first = np.clip(np.rint(begin), 0, extents - 1).astype(int)
        last = np.maximum(np.clip(np.rint(end), 0, extents).astype(int), first + 1)
        start = np.clip(np.rint((first - begin) / ratio), 0, size - 1).astype(int)
        size_inside = np.clip(np.rint((last - first) / ratio), 1, size - start).astype(int)
        inside = resize_image(im[first[0] : last[0], first[1] : last[1]], size_inside)
        result = np.array(resize_image(self.crop_mean, size.astype(int)), np.float32)
        result[start[0] : start[0] + size_inside[0], start[1] : start[1] + size_inside[1]] = inside
        return result
