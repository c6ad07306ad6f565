"""What all layers that bring data share: host memory that becomes tops, streams of records,
those whose items have any size."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backends.cores import usable_cores
from ...data.ahead.parallel_map import BadRecords
from ...data.ahead.pipeline import Buffer, Fill, Pipeline, Threads, Workers, allocate
from ...data.ahead.processes import Processes, worth_processes
from ...data.ahead.stalls import StallMonitor
from ...data.pictures.transform import Transform
from ...data.resident.memory_limit import SHARE, may_stay
from ...data.streams.stream import RecordStream
from ...labels import Labels
from ..base import Arrays, Blobs, Layer, Program, Reshaped, Shape, Shapes, Tensor

if TYPE_CHECKING:
    from ...data.resident.cache import CachedBatches

Following = Callable[[], Sequence[Buffer]]
"""Gives the next batch: a buffer for each tensor."""


class Feed(Layer):
    """A layer without bottoms that places host memory as its tops in every forward pass.

    `position` tells where its stream stands; set, the stream goes on from there.
    """

    bottoms = (0, 0)
    position: int = 0
    rank, ranks = 0, 1

    def split(self, rank: int, ranks: int) -> None:
        """Bring every `ranks`-th batch only, from batch `rank` on: `ranks` nets that do so bring
        all. `position` stays that of the stream as a whole.
        """
        self.rank, self.ranks = rank, ranks

    def next(self) -> list[Buffer]:
        """The next batch, one buffer for each tensor that is fed."""
        raise NotImplementedError

    def forward(self, program: Program, bottom: Blobs, top: Blobs) -> None:
        self.feed(program, [blob.data for blob in top])

    def feed(self, program: Program, tensors: list[Tensor]) -> None:
        """Let `next` bring these."""
        feed(program, tensors, self.next)


def feed(program: Program, tensors: list[Tensor], following: Following) -> None:
    """Record that memory of the host's becomes these tensors in each forward pass."""

    def place_buffers() -> None:
        for tensor, buffer in zip(tensors, following(), strict=True):
            tensor.place(buffer.flat, buffer.address)

    program.host([], tensors, function=place_buffers, feed=True)


class Stream(Feed):
    """A layer that takes its batches from a stream of records, made ahead."""

    _pipeline: Pipeline | CachedBatches
    _source: Any = None
    """What makes the batches: see data/streams."""

    def stream(
        self,
        source: Any,
        shapes: Shapes,
        *,
        threads: int | None = None,
        depth: int = 4,
        decodes: bool = False,
    ) -> Shapes:
        """Start the stream of tops that the source fills. Returns their shapes."""
        self._source, self.records = source, len(source)
        shapes = shapes[: len(self.param.top)]
        options: dict[str, Any] = {"threads": threads, "depth": depth, "decodes": decodes}
        self._pipeline = self.pipeline(source.fill, shapes, **options)
        return shapes

    def limit_labels(self, top: int, labels: Labels) -> None:
        if top == 1 and self._source is not None:
            self._source.labels = labels

    def names(self, first: int, count: int) -> list[str]:
        """The names of the files of that many records, from one of the stream on; else numbers."""
        positions = np.arange(first, first + count)
        if not isinstance(self._source, RecordStream):
            return [*map(str, positions)]
        return [self._source.file_name(at) for at in self._source.order(positions)[1].tolist()]

    # -- what settings have in common ------------------------------------------------------------

    def read_transform(self, *elsewhere: str, mean_file: str = "") -> Transform:
        """transform_param without the fields that are read elsewhere; mean_file if it has none."""
        param = type(self.param.transform_param)()
        param.CopyFrom(self.param.transform_param)
        for field in elsewhere:
            param.ClearField(field)
        if mean_file and not param.mean_file:
            param.mean_file = mean_file
        return Transform(param, self.phase, self.fail)

    def read_size(self, message: str) -> tuple[int, int] | None:
        """The height and width to which images are resized, if they are."""
        param = getattr(self.param, message)
        if bool(param.new_height) != bool(param.new_width):
            self.fail(message, "give both new_height and new_width, or neither")
        return (param.new_height, param.new_width) if param.new_height else None

    def list_options(self, message: str) -> dict[str, Any]:
        """What sources that read a list of images are given alike, from a message's fields."""
        param = getattr(self.param, message)
        return {
            "root": param.root_folder,
            "size": self.read_size(message),
            "block": self.block(param.shuffle),
            "seed": self.seed,
            "rand_skip": param.rand_skip,
            "bad": self.bad_records,
        }

    def block(self, shuffle: bool) -> int:
        """How many records come together, as for records_at: one where the layer's own settings
        shuffle; else as many as --shuffle says, in training."""
        return 1 if shuffle else self.context.data.shuffle if self.phase == "TRAIN" else 0

    @property
    def bad_records(self) -> BadRecords:
        """What becomes of records that cannot be used."""
        return BadRecords(skip=self.context.data.skip_bad)

    # -- how the stream runs ---------------------------------------------------------------------

    @property
    def stream_title(self) -> str:
        """What the log calls it: the nets of a solver may each have a layer of this name."""
        return f"{self.title}, {self.phase}"

    def readers(self, most: int | None) -> int:
        """The number of readers: --readers, else the minimum of `most` (None: the usable cores) and
        this process's share of the cores."""
        share = (os.cpu_count() or 1) // self.context.data.sharers
        return self.context.data.readers or max(1, min(most or usable_cores(), share))

    def pipeline(
        self,
        fill: Fill,
        shapes: Shapes,
        *,
        dtypes: Sequence[str] = (),
        first: Callable[[Shape, str], Buffer] | None = None,
        threads: int | None = None,
        depth: int = 4,
        decodes: bool = False,
    ) -> Pipeline:
        """The stream of arrays that `fill` writes; see Pipeline.

        first: makes the first of them, elsewhere than in the host's memory. decodes: whether `fill`
        does so much for each record that many threads would wait for Python's lock: processes do it
        then (its source can be sent to them).
        """
        count = self.readers(threads)
        workers: Callable[..., Workers] = Threads
        if first:
            workers = functools.partial(Threads, first=first)
        elif decodes and worth_processes(count, depth):
            workers = Processes
        return Pipeline(fill, shapes, dtypes=dtypes, depth=depth, threads=count, workers=workers)

    def cached(self, source: Any, parts: list[tuple[Shape, str]], **options: Any) -> CachedBatches:
        """A stream of records of these parts that stay where the backend has its tensors."""
        from ...data.resident.cache import CachedBatches

        backend, title = self.context.backend, self.stream_title
        self._pipeline = made = CachedBatches(backend, source, parts, title=title, **options)
        return made

    def stays_on_device(self, nbytes: int) -> bool:
        """Whether records of that many bytes are to stay where the backend has its tensors."""
        backend, cache = self.context.backend, self.context.data.cache
        if cache != "auto":
            return cache == "device"
        return self.context.raw_records and may_stay(
            nbytes, backend.uploads().free_bytes(), self.stream_title
        )

    def spreads(self, nbytes: int) -> bool:
        """Whether records of that many bytes are to be divided among the devices of the ranks, as
        some device has no room for all. All ranks call it together."""
        neighbours = self.context.data.neighbours
        if neighbours is None:
            return False
        fits = nbytes <= SHARE * self.context.backend.uploads().free_bytes()
        return not all(neighbours.gather(fits))

    def require_source(self, message: str, source: str, batch: str = "records") -> None:
        """Refuse settings without a source or a batch size."""
        self.require(message, source=source, batch_size=f"set it to the {batch} of one batch")

    def record_next(self, program: Program, cached: CachedBatches) -> Tensor:
        """Record what brings the row of `cached.ahead` that tells of the next batch."""
        table, cursor = cached.ahead.table, cached.ahead.cursor
        program.host([], cached.written, function=cached.prepare, feed=True, uploads=False)
        row = self.tensor(table.shape[1:], "int32")
        program.next_row(table, cursor, row)
        return row

    def next(self) -> list[Buffer]:
        asked = time.monotonic()
        batch = self._pipeline.next()
        self._waited.note(asked, time.monotonic())
        return batch

    @functools.cached_property
    def _waited(self) -> StallMonitor:
        return StallMonitor(self.stream_title, self.remedy)

    @property
    def remedy(self) -> str:
        """The options that may help where the net waits for its records."""
        return "--readers"

    def split(self, rank: int, ranks: int) -> None:
        super().split(rank, ranks)
        self._pipeline.split(rank, ranks)

    @property
    def position(self) -> int:
        """How many records the net has taken since the stream began."""
        return self._pipeline.position

    @position.setter
    def position(self, position: int) -> None:
        self._pipeline.position = position

    def close(self) -> None:
        """Stop those who read."""
        self._pipeline.close()


class DynamicFeed(Stream):
    """A stream that, where it `reshapes`, brings one item at a time, of any shape: the net follows.

    `shapes`, those of what came last, are then what `setup` goes by.
    """

    shapes: Shapes
    batch = 1
    """How many records are an item."""
    _waiting: list[Buffer] | None = None
    _position = 0

    @property
    def one_by_one(self) -> bool:
        """Whether `one` makes what comes, and no pipeline."""
        return self.reshapes

    def one(self, position: int) -> Arrays:
        """The item of the stream at this position, as a batch."""
        return [array[None] for array in self._source.one(position)][: len(self.param.top)]

    def next(self) -> list[Buffer]:
        """The next batch, or item: where it has another shape, the net is to follow first."""
        if not self.one_by_one:
            return super().next()
        if self._waiting is None:
            self._waiting = []
            for values in self.one(self._position + self.rank * self.batch):
                buffer = allocate(values.shape)
                buffer.array[...] = values
                self._waiting.append(buffer)
            self._position += self.ranks * self.batch
            shapes = [buffer.array.shape for buffer in self._waiting]
            if shapes != self.shapes:
                self.shapes = shapes
                raise Reshaped
        made, self._waiting = self._waiting, None
        return made

    @property
    def position(self) -> int:
        """How many records the net has taken since the stream began."""
        return self._position if self.one_by_one else self._pipeline.position

    @position.setter
    def position(self, position: int) -> None:
        if self.one_by_one:
            self._position, self._waiting = position, None
        else:
            self._pipeline.position = position

    def split(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        if not self.one_by_one:
            self._pipeline.split(rank, ranks)

    def close(self) -> None:
        if not self.one_by_one:
            super().close()
