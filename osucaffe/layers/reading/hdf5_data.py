"""Owns the layer HDF5Data, which reads rows of HDF5 files."""

from __future__ import annotations

import math

from ...data.resident.cache import CachedBatches
from ...data.streams.hdf5 import Hdf5Source
from ...errors import UserError
from ...labels import Labels
from ..base import Blobs, Program, Shapes, register
from .feed import Stream


@register("HDF5Data")
class HDF5Data(Stream):
    """Rows of HDF5 files that a list names: each top is the data set of its name."""

    tops = (1, None)
    _cached: CachedBatches | None = None
    messages = ("hdf5_data_param",)

    def setup(self, bottom: Shapes) -> Shapes:
        param = self.param.hdf5_data_param
        if self.param.HasField("transform_param"):
            self.fail("transform_param", "HDF5Data does not transform: write what the net needs")
        if not param.source:
            self.fail("hdf5_data_param.source", "is missing: name a file that lists HDF5 files")
        if not param.batch_size:
            self.fail("hdf5_data_param.batch_size", "is missing: set it to the rows of one batch")
        try:
            source = Hdf5Source(param.source, self.param.top, shuffle=param.shuffle, seed=self.seed)
        except UserError as error:
            self.fail("hdf5_data_param.source", str(error))
        self._labels, self.records = source.labels, len(source)
        shapes: Shapes = [(param.batch_size, *shape) for shape in source.shapes]
        if not self.stays_on_device(4 * len(source) * sum(map(math.prod, source.shapes))):
            return self.stream(source.fill, shapes)
        self._pipeline = self._cached = CachedBatches(
            self.backend,
            source,
            [(shape, "float32") for shape in source.shapes],
            batch=param.batch_size,
            width=1,
            fed=[(shape, "float32") for shape in shapes],
            pipeline=self.pipeline,
            title=self.stream_title,
        )
        return shapes

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        if self._cached is None:
            super().forward(program, bottom, top)
            return
        rows = self.record_next(program, self._cached)
        for part, blob in zip(self._cached.parts, top, strict=True):
            program.cached_rows(part, rows, blob.data)

    def limit_labels(self, top: int, labels: Labels) -> None:
        self._labels[top] = labels
