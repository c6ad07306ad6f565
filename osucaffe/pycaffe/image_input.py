"""How images enter a net's only input: as a script says, or as they did in training."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import net as engine
from ..data.pictures.preprocessing import Preprocessing, find_preprocessing
from ..data.pictures.transform import centre
from ..errors import UserError
from ..proto import AnyWeights
from .io import Extents, Transformer, resize_image
from .io import oversample as _ten_crops
from .net import Net
from .proto import caffe_pb2

log = logging.getLogger("osucaffe")


class ImageInput:
    """What the Transformer's setters do for the net's only input. settings: mean, input_scale,
    raw_scale, channel_swap; what is None is not set."""

    def __init__(self, net: Net | engine.Net, **settings: Any) -> None:
        if len(net.inputs) != 1:
            raise UserError(
                f"a net that images enter has one input, not {len(net.inputs)}: give its deploy "
                "prototxt, which begins with an Input layer"
            )
        self.name = net.inputs[0]
        shape: Sequence[int] = net.blobs[self.name].data.shape
        _, self.channels, *extents = shape
        self.extents = np.array(extents)
        self.transformer = Transformer({name: net.blobs[name].data.shape for name in net.inputs})
        self.transformer.set_transpose(self.name, (2, 0, 1))
        self._set(**settings)

    def _set(self, **settings: Any) -> None:
        for name, value in settings.items():
            if value is not None:
                getattr(self.transformer, f"set_{name}")(self.name, value)

    @property
    def is_set(self) -> bool:
        """Whether anything has been said of the values that enter."""
        t = self.transformer
        return any((t.mean, t.input_scale, t.raw_scale, t.channel_swap))

    def set_as(
        self, trained: Preprocessing, *, mean: np.ndarray | None = None, **given: Any
    ) -> Sequence[int] | None:
        """Let images (0..1, red first) enter as they did in training, but for what is given.

        Returns the (height, width) that they had there before they were cropped, where that is
        known. UserError where the mean of then is not found, or does not fit; ValueError where what
        is given does not.
        """
        extents = trained.extents
        if mean is not None:
            self.transformer.set_mean(self.name, self._fit(mean))
        elif (mean := trained.mean()) is not None:
            if mean.ndim == 3:
                extents = extents or mean.shape[1:]
            try:
                self.transformer.set_mean(self.name, self._fit(mean))
            except ValueError as error:
                raise UserError(f"{trained.origin}: {error}") from None
        self._set(
            input_scale=trained.scale,
            raw_scale=255,
            channel_swap=(2, 1, 0) if self.channels == 3 else None,
        )
        self._set(**given)
        return extents

    def _fit(self, mean: np.ndarray) -> np.ndarray:
        """A mean for the input: of one value for all channels, or an image of another size. Of a
        larger image it is the middle part; a smaller one is scaled."""
        if mean.ndim <= 1 and mean.size == 1:
            return np.repeat(mean, self.channels)
        if mean.ndim == 3 and mean.shape[1:] != tuple(self.extents):
            image = mean.transpose(1, 2, 0)
            image = centre(image, np.minimum(self.extents, image.shape[:2]))
            return resize_image(image, self.extents).transpose(2, 0, 1)
        return mean

    def __call__(self, images: Sequence[np.ndarray]) -> np.ndarray:
        """All images as one array for `Net.forward_all`."""
        return np.array([self.transformer.preprocess(self.name, image) for image in images])

    def __str__(self) -> str:
        transformer, name = self.transformer, self.name
        parts = []
        if self.channels == 3:
            order = transformer.channel_swap.get(name, (0, 1, 2))
            parts.append(", ".join(("red", "green", "blue")[channel] for channel in order))
        parts.append(f"0..{transformer.raw_scale.get(name, 1):g}")
        if (mean := transformer.mean.get(name)) is not None:
            what = "the mean" if mean.shape[1:] == (1, 1) else "a mean image, on average"
            parts.append(f"less {what} {', '.join(f'{value:g}' for value in mean.mean((1, 2)))}")
        if (scale := transformer.input_scale.get(name, 1)) != 1:
            parts.append(f"times {scale:g}")
        return ", ".join(parts)


class Cropped:
    """Images are scaled to `image_dims`, and parts of them, of `crop_dims`, enter by `preprocess`:
    pycaffe's way into a classifier."""

    preprocess: ImageInput

    def crop_to_input(self, image_dims: Extents | None) -> None:
        """Scale to (height, width); None: to the input's own. UserError for less than that."""
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

    def entered(self, image: np.ndarray, *, oversample: bool) -> np.ndarray:
        """An image (height, width, channels) as it enters the net: crops, (1 or 10, C, H, W)."""
        return self.cut(resize_image(image, self.image_dims), oversample=oversample)

    def cut(self, image: np.ndarray, *, oversample: bool) -> np.ndarray:
        """The same of an image that has been scaled."""
        one = not oversample
        crops = [centre(image, self.crop_dims)] if one else _ten_crops([image], self.crop_dims)
        return self.preprocess(list(crops))


class ImageNet(Net):
    """A net in its TEST phase that images enter, by the settings of io.Transformer.

    A script that sets none of them has images of 0..1 (as io.load_image gives them) enter as in
    training, if the file of weights tells how that was. Others it may have prepared itself.
    """

    trained: Preprocessing | None = None
    """What the file of weights tells: it holds the data layer of the net that was trained."""

    def __init__(
        self, model_file: str | Path, pretrained_file: str | Path, **settings: Any
    ) -> None:
        super().__init__(model_file, caffe_pb2.TEST, weights=pretrained_file)
        self.preprocess = ImageInput(self, **settings)
        self.transformer = self.preprocess.transformer

    def _load(self, model: AnyWeights, file: str | Path) -> None:
        super()._load(model, file)
        self.trained = find_preprocessing(model, file, next(iter(self.inputs), ""))

    def enter_as_trained(self, images: Iterable[np.ndarray]) -> Extents | None:
        """If nothing is set yet, do what `ImageInput.set_as` does for such images, and say so."""
        if self.preprocess.is_set or not all(_is_plain(image) for image in images):
            return None
        if self.trained is None:
            log.warning(
                "How images were preprocessed in training is unknown: they enter the net as they "
                "are, 0..1; set what they need (raw_scale, mean, input_scale, channel_swap)"
            )
            return None
        extents = self.preprocess.set_as(self.trained)
        log.info(
            "Images are preprocessed as in training (%s): %s", self.trained.origin, self.preprocess
        )
        return extents


def _is_plain(image: np.ndarray) -> bool:
    """Whether an image is 0..1, as files are read: nobody has scaled it, or taken a mean off."""
    return bool(np.min(image) >= 0 and np.max(image) <= 1)
