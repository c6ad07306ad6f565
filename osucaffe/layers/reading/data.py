"""Owns the layers that bring data into a net: Data, Input, DummyData."""

from __future__ import annotations

import numpy as np

from ... import filler
from ...backends.cores import usable_cores
from ...data.ahead.parallel_map import BadRecords
from ...data.ahead.pipeline import Buffer, allocate
from ...data.databases.database import open_database
from ...data.pictures.transform import Transform
from ...data.streams.source import DatumSource
from ...errors import UserError
from ...proto import caffe_pb2
from ..base import Blobs, Layer, Program, Shape, Shapes, register
from .feed import Feed, feed
from .images import Images

_COPYING = 4


@register("Data")
class Data(Images):
    """Images (and labels, if there is a second top) from an LMDB, transformed and prefetched."""

    tops = (1, 2)
    messages = ("data_param", "transform_param")

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.data_param
        self._check(param)
        transform = Transform(self.param.transform_param, self.phase, self.fail)
        try:
            database = open_database(param.source)
        except UserError as error:
            self.fail("data_param.source", str(error))
        block = self.data_config.shuffle if self.phase == "TRAIN" else 0
        source = DatumSource(
            database,
            transform,
            seed=self.seed,
            rand_skip=param.rand_skip,
            block=block or int(param.shuffle),
            bad=BadRecords(skip=self.data_config.skip_bad),
            raw=self.takes_raw,
        )
        # A few threads copy raw records as fast as the memory can; decoding is worth all cores.
        threads = usable_cores() if source.encoded else min(_COPYING, usable_cores())
        return self.images(
            source,
            transform,
            batch=param.batch_size,
            threads=threads,
            depth=param.prefetch,
            decodes=source.encoded and database.shared,
        )

    def _check(self, param: caffe_pb2.DataParameter) -> None:
        if not param.source:
            self.fail("data_param.source", "is missing: set it to the folder of a database")
        if not param.batch_size:
            self.fail("data_param.batch_size", "is missing: set it to the images of one batch")


@register("Input")
class Input(Layer):
    """Blobs that the caller fills before each forward pass, or lets the net ask for."""

    bottoms = (0, 0)
    tops = (1, None)

    def setup(self, bottom: Shapes) -> Shapes:
        tops = len(self.param.top)
        shapes = [tuple(shape.dim) for shape in self.param.input_param.shape]
        if len(shapes) not in (1, tops):
            given = f"{len(shapes)} shapes for {tops} tops"
            self.fail("input_param.shape", f"{given}: give 1 or {tops}")
        return shapes * (tops // len(shapes))

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        if self.data_config.inputs is not None:
            feed(program, [blob.data for blob in top], self.data_config.inputs)
            return
        for blob in top:
            blob.data.persistent = True


@register("DummyData")
class DummyData(Feed):
    """Blobs from fillers: constant ones are filled once, random ones anew in each forward."""

    tops = (1, None)

    def setup(self, bottom: Shapes) -> Shapes:
        tops = len(self.param.top)
        fillers = list(self.param.dummy_data_param.data_filler) or [caffe_pb2.FillerParameter()]
        if len(fillers) not in (1, tops):
            self.fail(
                "dummy_data_param.data_filler",
                f"{len(fillers)} fillers for {tops} tops: give none, 1 or {tops}",
            )
        self._fillers = fillers * (tops // len(fillers))
        shapes = self._shapes(tops)
        # A trial of each filler now: a bad one is reported before training begins. Of random
        # values, which nobody uses, the first item does.
        self._constant = [each.type == "constant" for each in self._fillers]
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
                self.fail(
                    "dummy_data_param",
                    f"give shape (or each of num, channels, height, width) once or {tops} times",
                )
            columns = [list(values) * (tops // len(values)) for values in legacy]
            shapes = list(zip(*columns, strict=True))
        if len(shapes) not in (1, tops):
            self.fail(
                "dummy_data_param.shape", f"{len(shapes)} shapes for {tops} tops: give 1 or {tops}"
            )
        for shape in shapes:
            self.check_shape("dummy_data_param.shape", "a blob", shape)
        return shapes * (tops // len(shapes))

    def _draw(self, top: int, shape: Shape) -> np.ndarray:
        draws = filler.Draws(self.seed, self.key, top, self.position + self.rank)
        return filler.fill(self._fillers[top], shape, draws, self.title)

    def next(self) -> list[Buffer]:
        for top, buffer in zip(self._random, self._buffers, strict=True):
            buffer.array[...] = self._draw(top, buffer.array.shape)
        self.position += self.ranks
        return self._buffers
