"""Owns layers that stream images: the reading threads transform them, or the backend does."""

from __future__ import annotations

import functools
from typing import Protocol

from ..backends.primitives import Program
from ..backends.records import Filler
from ..backends.tensor import Shape, Tensor
from ..blob import Blob
from ..data.pipeline import Buffer, Fill
from ..data.transform import Transform
from ..labels import Labels
from .feed import Stream


class Source(Protocol):
    """What makes the batches: see DatumSource, whose names these are."""

    shape: Shape
    record_shape: Shape
    raw: bool
    raw_shape: Shape
    interleaved: bool
    labels: Labels

    @property
    def fill(self) -> Fill:
        """Writes records into a batch; raw ones as bytes and the table of `transform`."""


class Images(Stream):
    """A layer that takes transformed images (and labels) from a source."""

    def images(
        self,
        source: Source,
        transform: Transform,
        *,
        batch: int,
        threads: int,
        depth: int = 4,
        decodes: bool = True,
        there: Filler | None = None,
    ) -> list[Shape]:
        """Start the stream. Returns the shapes of the tops.

        decodes: see `prefetch`. there: whose memory raw records are written to, instead of the
        host's.
        """
        self._source = source
        self.record_shape = source.record_shape
        shapes: list[Shape] = [(batch, *source.shape), (batch,)]
        if not source.raw:
            return self.stream(source.fill, shapes, threads=threads, depth=depth, decodes=decodes)
        self.computed = (0,)
        self._raw = self.tensor((batch, *source.raw_shape), "uint8")
        self._table = self.tensor((batch, 3), "int32")
        self._mean: Tensor | None = None
        if transform.mean is not None:
            self._mean = self.tensor(transform.mean.shape, kept=True)
            self.initial = [(self._mean, transform.mean)]
        self._scale, self._interleaved = float(transform.scale), source.interleaved
        shapes = shapes[: len(self.param.top)]
        fed = [self._raw.shape, self._table.shape, *shapes[1:]]
        dtypes = [self._raw.dtype, self._table.dtype, *["float32"] * len(shapes[1:])]
        first = functools.partial(_allocate, there) if there else None
        self.prefetch(
            source.fill,
            fed,
            dtypes=dtypes,
            first=first,
            threads=threads,
            depth=depth,
            decodes=decodes,
        )
        return shapes

    def limit_labels(self, top: int, labels: Labels) -> None:
        if top == 1:
            self._source.labels = labels

    def forward(self, program: Program, bottom: list[Blob], top: list[Blob]) -> None:
        if not self.computed:
            super().forward(program, bottom, top)
            return
        self.feed(program, [self._raw, self._table, *(blob.data for blob in top[1:])])
        program.transform(
            self._raw,
            self._table,
            self._mean,
            top[0].data,
            scale=self._scale,
            interleaved=self._interleaved,
        )


def _allocate(there: Filler, shape: Shape, _: str) -> Buffer:
    memory = there.allocate(shape)
    return Buffer(memory, memory.reshape(-1), int(memory.data.ptr))
