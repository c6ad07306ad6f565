"""The layers that bring what is in memory: Input, MemoryData, and DummyData's fillers."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from ... import filler
from ...data.ahead.pipeline import Buffer, allocate
from ...data.config import Inputs
from ...data.pictures.transform import Transform, record_draws
from ...errors import UserError
from ...labels import Labels
from ...proto import caffe_pb2
from ..base import Blobs, Layer, Program, Shape, Shapes, register
from .feed import Feed

log = logging.getLogger("osucaffe")


def _for_each_top(layer: Layer, field: str, values: list[Any], named: str) -> list[Any]:
    """A value for each top, of which the field gives one for all, or one each."""
    tops = len(layer.param.top)
    if len(values) not in (1, tops):
        layer.fail(field, f"{len(values)} {named} for {tops} tops: give 1 or {tops}")
    return values * (tops // len(values))


@register("Input")
class Input(Feed):
    """Blobs that the caller fills before each forward pass, or lets the net ask for."""

    tops = (1, None)

    def setup(self, bottom: Shapes) -> Shapes:
        shapes = [tuple(shape.dim) for shape in self.param.input_param.shape]
        self._labels: dict[int, Labels] = {}
        return _for_each_top(self, "input_param.shape", shapes, "shapes")

    def limit_labels(self, top: int, labels: Labels) -> None:
        if labels:
            self._labels[top] = labels

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        if self.context.data.inputs is not None:
            super().forward(program, bottom, top)
            return
        for blob in top:
            blob.data.persistent = True

    def next(self) -> list[Buffer]:
        buffers = self._stream.next()
        for top, labels in self._labels.items():
            labels.check_all(buffers[top].array, f'{self.title}: blob "{self.param.top[top]}"')
        return buffers

    @property
    def _stream(self) -> Inputs:
        assert self.context.data.inputs is not None
        return self.context.data.inputs(self)

    @property
    def position(self) -> int:
        return self._stream.position if self.context.data.inputs is not None else 0

    @position.setter
    def position(self, position: int) -> None:
        if self.context.data.inputs is not None:
            self._stream.position = position


@register("DummyData")
class DummyData(Feed):
    """Blobs from fillers: constant ones are filled once, random ones again in each forward."""

    tops = (1, None)

    def setup(self, bottom: Shapes) -> Shapes:
        tops = len(self.param.top)
        fillers = list(self.param.dummy_data_param.data_filler) or [caffe_pb2.FillerParameter()]
        self._fillers = _for_each_top(self, "dummy_data_param.data_filler", fillers, "fillers")
        shapes = self._shapes(tops)
        # A trial of each filler now: a bad one is reported before training begins. Of random
        # values, which nobody uses, the first item does.
        self._constant = [settings.type == "constant" for settings in self._fillers]
        self._values = [
            self._draw(top, shape if once else (*(min(size, 1) for size in shape[:1]), *shape[1:]))
            for top, (shape, once) in enumerate(zip(shapes, self._constant, strict=True))
        ]
        return shapes

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.initial = [
            (blob.data, values)
            for blob, values, once in zip(top, self._values, self._constant, strict=True)
            if once
        ]
        self._random = [index for index, once in enumerate(self._constant) if not once]
        self._buffers = [allocate(top[index].shape) for index in self._random]
        if self._random:
            self.feed(program, [top[index].data for index in self._random])

    def _shapes(self, tops: int) -> Shapes:
        param = self.param.dummy_data_param
        legacy = [param.num, param.channels, param.height, param.width]
        if param.shape and any(legacy):
            self.fail("dummy_data_param", "give either shape or num, channels, height, width")
        if param.shape:
            shapes = [tuple(shape.dim) for shape in param.shape]
        else:
            counts = {len(values) for values in legacy}
            if 0 in counts or not counts <= {1, tops}:
                fields = "shape (or each of num, channels, height, width)"
                self.fail("dummy_data_param", f"give {fields} once or {tops} times")
            columns = [list(values) * (tops // len(values)) for values in legacy]
            shapes = list(zip(*columns, strict=True))
        for shape in shapes:
            self.check_shape("dummy_data_param.shape", "a blob", shape)
        return _for_each_top(self, "dummy_data_param.shape", shapes, "shapes")

    def _draw(self, top: int, shape: Shape) -> np.ndarray:
        draws = filler.Draws(self.seed, self.key, top, self.position + self.rank)
        return filler.fill(self._fillers[top], shape, draws, self.title)

    def next(self) -> list[Buffer]:
        for top, buffer in zip(self._random, self._buffers, strict=True):
            buffer.array[...] = self._draw(top, buffer.array.shape)
        self.position += self.ranks
        return self._buffers


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
        if self.param.HasField("transform_param"):
            log.warning("%s: transform_param does not apply to arrays, as in Caffe", self.title)
        self._set_arrays(data, labels)

    def _set_arrays(self, data: np.ndarray, labels: np.ndarray) -> None:
        count = len(data) if np.ndim(data) else 0
        if np.shape(data) != (count, *self.shape) or not count or count % self.batch_size:
            expected = f"(N, {', '.join(map(str, self.shape))}) with N a multiple of batch_size"
            given = f"{self.title}: the data have shape {np.shape(data)}"
            raise UserError(f"{given}, not {expected} {self.batch_size}")
        if np.size(labels) != count:
            raise UserError(f"{self.title}: {np.size(labels)} labels for {count} images")
        self._arrays = np.asarray(data), np.asarray(labels).reshape(count)
        self.position = 0

    def add_images(self, images: np.ndarray, labels: np.ndarray) -> None:
        """The same for images (N, channels, height, width) that transform_param applies to."""
        images = np.asarray(images)
        shape = self._transform.prepare(images.shape[1:]) if images.ndim == 4 else ()
        if shape != self.shape:
            become = f"images of {images.shape} become {shape} by transform_param"
            raise UserError(f"{self.title}: {become}, but the layer needs {self.shape}")
        data = np.empty((len(images), *shape), np.float32)
        numbers = self._added + np.arange(len(images))
        draws = record_draws(self.seed, np.zeros_like(numbers), numbers).tolist()
        for image, out, draw in zip(images, data, draws, strict=True):
            self._transform.apply(image, out, draw)
        self._set_arrays(data, labels)
        self._added += len(images)

    def next(self) -> list[Buffer]:
        if self._arrays is None:
            text = "no data yet: give the layer its arrays (set_arrays, set_input_arrays)"
            self.fail("top", text)
        data, labels = self._arrays
        start = (self.position + self.rank * self.batch_size) % len(data)
        stop = start + self.batch_size
        if (index := self._labels.wrong(labels[start:stop])) is not None:
            name = f"{self.title}: image {start + index} of the arrays"
            self._labels.check(labels[start + index], name)
        self._buffers[0].array[...] = data[start:stop]
        self._buffers[1].array[...] = labels[start:stop]
        self.position += self.ranks * self.batch_size
        return self._buffers
