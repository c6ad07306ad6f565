"""Layers that stream images: the reading threads transform them, or the backend does."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from ...backends.cores import usable_cores
from ...backends.records import Filler, ImageDecoder
from ...backends.uploads import available_memory
from ...data.ahead.decoded_cache import DecodedCache
from ...data.ahead.pipeline import Buffer, Threads
from ...data.ahead.processes import Processes, can_be_processes
from ...data.pictures.transform import Transform
from ...data.resident.memory_limit import log_stay, may_stay
from ...data.streams.images import ImageStream
from ...data.streams.source import DatumSource
from ...data.streams.staging import DecodedBatches
from ..base import Blobs, Program, Shape, Shapes, Tensor
from .feed import Stream

if TYPE_CHECKING:
    from ...data.resident.cache import CachedBatches

_LARGE = 200 * 200
"""Pixels of an image from which on engines are taken to be faster than 16 cores: to feed them takes
20 us for each image, in which these decode some that are small."""
_HANDING_ON = 4
"""Readers that decode nothing: they keep up with 47,000 images per second."""


class Images(Stream):
    """A layer that takes transformed images (and labels) from a source."""

    _cached: CachedBatches | None = None

    @property
    def takes_raw(self) -> bool:
        """Whether the source is to give its records as they are, if it can."""
        return self.context.raw_records or self.context.data.cache == "device"

    def images(
        self,
        source: ImageStream,
        transform: Transform,
        *,
        batch: int,
        threads: int | None = None,
        depth: int = 4,
        decodes: bool = True,
    ) -> Shapes:
        """Start the stream. Returns the shapes of the tops. decodes: see `pipeline`."""
        self._source, self.records = source, len(source)
        self.record_shape = source.record_shape
        config = self.context.data
        if transform.augmentation and (config.cache == "device" or config.decode == "gpu"):
            text = "the CPU varies images: leave out --cache device and --decode gpu"
            self.fail("transform_param.augmentation_param", text)
        nbytes = len(source) * math.prod(source.raw_shape) if source.raw else 0
        spreads = nbytes > 0 and self.spreads(nbytes)
        stays = nbytes > 0 and (spreads or self.stays_on_device(nbytes))
        here = config.cache in ("auto", "host") and config.decode != "gpu"
        if not stays and source.encoded and here:
            size = len(source) * math.prod(source.record_shape)
            room = available_memory() // config.sharers
            if may_stay(size, room, self.stream_title):
                log_stay(self.stream_title, len(source), size, room, ", decoded")
                source.decoded = DecodedCache(len(source), source.record_shape, interleaved=True)
        shapes: Shapes = [(batch, *source.shape), (batch,)]
        if not source.raw:
            return self.stream(source, shapes, threads=threads, depth=depth, decodes=decodes)
        self.computed = (0,)
        self._raw = self.tensor((batch, *source.raw_shape), "uint8")
        self._table = self.tensor((batch, 3), "int32")
        self._mean: Tensor | None = None
        if transform.mean is not None:
            self._mean = self.tensor(transform.mean.shape, persistent=True)
            self.initial = [(self._mean, transform.mean)]
        self._settings: dict[str, Any] = {
            "scale": float(transform.scale), "interleaved": source.interleaved
        }  # fmt: skip
        shapes = shapes[: len(self.param.top)]
        fed = [self._raw.shape, self._table.shape, *shapes[1:]]
        dtypes = [self._raw.dtype, self._table.dtype, *["float32"] * len(shapes[1:])]
        readers = functools.partial(self.pipeline, threads=threads, depth=depth, decodes=decodes)
        if stays:
            self._cached = self.cached(
                source,
                [(source.raw_shape, "uint8")],
                batch=batch,
                width=5,
                fed=list(zip(fed, dtypes, strict=True)),
                pipeline=readers,
                neighbours=config.neighbours if spreads else None,
            )
            return shapes
        if isinstance(source, DatumSource) and depth and (decoder := self._image_decoder(source)):
            self._pipeline = DecodedBatches(
                source,
                decoder,
                fed,
                dtypes=dtypes,
                first=functools.partial(_allocate, decoder),
                readers=self.readers(min(_HANDING_ON, threads or usable_cores())),
                workers=Processes if decodes and can_be_processes() else Threads,
                depth=depth,
                title=self.stream_title,
            )
            return shapes
        first = None
        if source.file and (copier := self.context.backend.map_file(source.file)):
            source.copier = copier
            first = functools.partial(_allocate, copier)
        self._pipeline = readers(source.fill, fed, dtypes=dtypes, first=first)
        return shapes

    def _image_decoder(self, source: DatumSource) -> ImageDecoder | None:
        """What decodes its records in place of the readers."""
        decode = self.context.data.decode
        if decode == "host" or source.decoded or not source.interleaved:
            return None
        if decode == "auto" and math.prod(source.record_shape[1:]) < _LARGE:
            return None
        return self.context.backend.image_decoder(always=decode == "gpu")

    @property
    def remedy(self) -> str:
        source, is_there = self._source, isinstance(self._pipeline, DecodedBatches)
        raw = isinstance(source, DatumSource) and source.interleaved
        can_be_there = raw and self.context.raw_records
        return super().remedy + " and --decode" * (can_be_there and not is_there)

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        if not self.computed:
            super().forward(program, bottom, top)
            return
        if self._cached:
            self._forward_cached(self._cached, program, top)
            return
        self.feed(program, [self._raw, self._table, *(blob.data for blob in top[1:])])
        inputs = self._raw, self._table, self._mean
        program.transform(*inputs, top[0].data, **self._settings)

    def _forward_cached(self, cached: CachedBatches, program: Program, top: Blobs) -> None:
        rows, label = self.record_next(program, cached), top[1].data if len(top) > 1 else None
        outputs = top[0].data, label, cached.slots.table
        program.cached_batch(cached.parts[0], rows, self._mean, *outputs, **self._settings)


def _allocate(there: Filler, shape: Shape, _: str) -> Buffer:
    memory = there.allocate(shape)
    return Buffer(memory, memory.reshape(-1), int(memory.data.ptr))
