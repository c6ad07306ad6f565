"""Owns the layer MemoryData, which brings arrays that the program gives it."""

from __future__ import annotations

import numpy as np

from ...data.ahead.pipeline import Buffer, allocate
from ...data.pictures.transform import Transform, record_draws
from ...errors import UserError
from ...labels import Labels
from ..base import Shape, Shapes, register
from .feed import Feed


@register("MemoryData")
class MemoryData(Feed):
    """Images and labels from arrays in memory, batch by batch, over and over."""

    tops = (2, 2)
    messages = ("memory_data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.memory_data_param
        self.batch_size = param.batch_size
        self.shape: Shape = (param.channels, param.height, param.width)
        for field in ("batch_size", "channels", "height", "width"):
            if not getattr(param, field):
                self.fail(f"memory_data_param.{field}", "is missing: all four must be at least 1")
        self._transform = Transform(self.param.transform_param, self.phase, self.fail)
        self._arrays: tuple[np.ndarray, np.ndarray] | None = None
        self._added = 0
        self._labels = Labels()
        shapes: Shapes = [(self.batch_size, *self.shape), (self.batch_size,)]
        self._buffers = [allocate(shape) for shape in shapes]
        return shapes

    def limit_labels(self, top: int, labels: Labels) -> None:
        if top == 1:
            self._labels = labels

    def set_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        """Bring these from now on, as they are: transform_param does not apply.

        data: float32 (N, channels, height, width), and labels: N of them, N a multiple of
        batch_size. They are not copied: they may be changed in place. Wrong shapes: UserError.
        """
        count = len(data) if np.ndim(data) else 0
        if np.shape(data) != (count, *self.shape) or not count or count % self.batch_size:
            raise UserError(
                f"{self.title}: the data have shape {np.shape(data)}, not "
                f"(N, {', '.join(map(str, self.shape))}) with N a multiple of batch_size "
                f"{self.batch_size}"
            )
        if np.size(labels) != count:
            raise UserError(f"{self.title}: {np.size(labels)} labels for {count} images")
        self._arrays = np.asarray(data), np.asarray(labels).reshape(count)
        self.position = 0

    def add_images(self, images: np.ndarray, labels: np.ndarray) -> None:
        """The same for images (N, channels, height, width) that transform_param applies to."""
        images = np.asarray(images)
        shape = self._transform.prepare(images.shape[1:]) if images.ndim == 4 else ()
        if shape != self.shape:
            raise UserError(
                f"{self.title}: images of {images.shape} become {shape} by "
                f"transform_param, but the layer wants {self.shape}"
            )
        data = np.empty((len(images), *shape), np.float32)
        numbers = self._added + np.arange(len(images))
        draws = record_draws(self.seed, np.zeros_like(numbers), numbers).tolist()
        for image, out, draw in zip(images, data, draws, strict=True):
            self._transform.apply(image, out, draw)
        self.set_arrays(data, labels)
        self._added += len(images)

    def next(self) -> list[Buffer]:
        if self._arrays is None:
            self.fail(
                "top", "no data yet: give the layer its arrays (set_arrays, set_input_arrays)"
            )
        data, labels = self._arrays
        start = (self.position + self.rank * self.batch_size) % len(data)
        stop = start + self.batch_size
        if (place := self._labels.wrong(labels[start:stop])) is not None:
            name = f"{self.title}: image {start + place} of the arrays"
            self._labels.check(labels[start + place], name)
        self._buffers[0].array[...] = data[start:stop]
        self._buffers[1].array[...] = labels[start:stop]
        self.position += self.ranks * self.batch_size
        return self._buffers
