"""AnnotatedData: images with the boxes of their objects, from an LMDB (SSD)."""

from __future__ import annotations

import numpy as np

from ...data.ahead.pipeline import Buffer, allocate
from ...data.databases.database import open_database
from ...layers.base import Arrays, Blobs, Program, Shapes, register
from ...layers.reading.feed import DynamicFeed
from .annotated import COLUMNS, ROOM, AnnotatedSource, join_rows

OBJECTS = 64
"""Rows of the label's top for each image; ROOM at least. Those after the objects are -1."""
SAME_SIZE = 10
"""How many batches have one size, where there are several to draw from, as in MobileNet-YOLO."""


@register("AnnotatedData")
class AnnotatedData(DynamicFeed):
    """Images from an LMDB, varied as SSD does, and a row of 8 numbers for each of their objects.

    Of several `resize_param`s one is drawn, by their prob, for 10 batches (MobileNet-YOLO).
    """

    tops = (1, 2)
    messages = ("data_param", "transform_param", "annotated_data_param")
    _source: AnnotatedSource | None = None

    def setup(self, bottom: Shapes) -> Shapes:
        batch = self.param.data_param.batch_size
        if self._source is None:
            self._source = self._open()
            self.records = len(self._source)
            self.reshapes = self._source.varies or self._source.sizes > 1
            self.batch = batch
            shapes: Shapes = [(batch, *self._source.shape), (batch, ROOM, COLUMNS)]
            self.shapes = shapes[: len(self.param.top)]
        rows = max(ROOM, OBJECTS * batch)
        self._rows, self._count = allocate((1, 1, rows, COLUMNS)), allocate((1,))
        if not self.reshapes:
            depth, decodes = self.param.data_param.prefetch, self._source.shared
            self.stream(self._source, self.shapes, depth=depth, decodes=decodes)
        return [self.shapes[0], self._rows.array.shape][: len(self.param.top)]

    def _open(self) -> AnnotatedSource:
        param = self.param.data_param
        self.require_source("data_param", "set it to the folder of an LMDB", "images")
        with self.blame("data_param.source"):
            database = open_database(param.source)
            source = AnnotatedSource(
                database, self.param, self.phase, self.fail, seed=self.seed,
                block=self.block(param.shuffle),
                bad=self.bad_records,
            )  # fmt: skip
        if source.varies and param.batch_size > 1:
            text = "FIT_SMALL_SIZE gives images of any size: batch_size must be 1"
            self.fail("transform_param.resize_param.resize_mode", text)
        return source

    def one(self, position: int) -> Arrays:
        number, source, size = self._position // (self.ranks * self.batch), self._source, 0
        assert source is not None
        if source.sizes > 1:
            size = source.drawn_size((self.seed, self.key, number // SAME_SIZE))
        items = [source.one(position + i, size) for i in range(self.batch)]
        return [np.stack(each) for each in zip(*items, strict=True)][: len(self.param.top)]

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        if len(top) == 1:
            self.feed(program, [top[0].data])
            return
        top[1].keep_exact()
        top[1].length = self.tensor((1,), persistent=True)
        self.feed(program, [top[0].data, top[1].data, top[1].length])

    def next(self) -> list[Buffer]:
        image, *rows = super().next()
        if rows:
            self._count.array[0] = join_rows(rows[0].array, self._rows.array[0, 0])
        return [image, *[self._rows, self._count][: 2 * len(rows)]]
