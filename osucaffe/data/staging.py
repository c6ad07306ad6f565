"""Owns batches of JPEGs that the readers and engines of a device decode together.

Reader processes make a batch ready: they decode some of its records, and put the others where their
pixels will be as they are. So all that is left to do for each of these here is to pass it on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ..backends.records import ImageEngine, Part
from ..backends.tensor import Shape
from .ahead import BadRecords
from .pipeline import Buffer, Pipeline, Threads
from .processes import Processes
from .source import DatumSource

_log = logging.getLogger("osucaffe")

CORE_RATE = 1000 * 256 * 256
"""Pixels a second that a core decodes while a GPU trains, and hands on what others decode."""
ABOUT = 9
"""Numbers that tell of a record: the bytes of its JPEG (0: it is decoded), and its Part."""
_AHEAD = 6
"""Batches that are decoded ahead, and threads that let the engines do it."""
_REFUSED = 0.25
"""Of what the engines were given; where they refuse more, they are given nothing any more."""


class Staging:
    """A source whose batches have some records as JPEGs, for others to decode (in readers).

    share: of each part of a batch, how much. The same records for the same share and parts.
    """

    takes_all = False

    def __init__(self, source: DatumSource, share: float) -> None:
        self.source, self.share = source, share

    @property
    def bad(self) -> BadRecords:
        """What becomes of records that cannot be used."""
        return self.source.bad

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """As the source's; behind its arrays, int32 (N, ABOUT)."""
        self._raw, self._about = arrays[0], arrays[-1]
        self._about[:] = 0
        self._left = round(self.share * len(self._raw))
        self.source.decoder = self
        self.source.fill(position, arrays[:-1])

    # -- as the source's decoder, in a reader ------------------------------------------------------

    def decode(
        self, jpegs: Sequence[memoryview], parts: Sequence[Part], places: Sequence[int], batch: Any
    ) -> list[bool]:
        first = (batch.ctypes.data - self._raw.ctypes.data) // self._raw.strides[0]
        done = []
        for jpeg, part, place in zip(jpegs, parts, places, strict=True):
            row = self._raw[first + place].reshape(-1)
            done.append(self._left > 0 and len(jpeg) <= len(row))
            if done[-1]:
                self._left -= 1
                row[: len(jpeg)] = jpeg
                self._about[first + place] = (len(jpeg), *chain(*part))
        return done

    def put(self, image: np.ndarray, place: int, batch: Any) -> None:
        batch[place] = image

    def allocate(self, shape: Shape) -> Any:
        return np.empty(shape, np.uint8)


class DecodedBatches(Pipeline):
    """The batches of a Staging, decoded by an engine into memory of its own.

    shapes, dtypes: of a batch: raw records (N, height, width, channels), the table of `transform`,
    and the labels, if they are wanted. first: makes the first of these, in the engine's memory.
    readers: processes that make `depth` batches ready for it.
    """

    def __init__(
        self,
        source: DatumSource,
        engine: ImageEngine,
        shapes: Sequence[Shape],
        *,
        dtypes: Sequence[str],
        first: Callable[[Shape, str], Buffer],
        readers: int,
        depth: int,
        title: str,
    ) -> None:
        share = engine.rate / (engine.rate + readers * CORE_RATE)
        _log.info("%s: the GPU's engines decode %.0f %% of it (--decode)", title, 100 * share)
        self._staging, self._engine, self._title = Staging(source, share), engine, title
        self._staged = Pipeline(
            self._staging.fill,
            [*shapes, (shapes[0][0], ABOUT)],
            dtypes=[*dtypes, "int32"],
            depth=depth,
            held=_AHEAD + 1,  # as many as may be taken before the first of them is decoded
            threads=readers,
            workers=Processes,
        )
        self._turn = threading.Condition()
        self._next = 0
        self._error: Exception | None = None
        super().__init__(
            self._decode,
            shapes,
            dtypes=dtypes,
            depth=_AHEAD,
            threads=_AHEAD,
            workers=partial(Threads, first=first),
        )

    def split(self, rank: int, ranks: int) -> None:
        super().split(rank, ranks)
        self._staged.split(rank, ranks)
        self._begin()

    @property
    def position(self) -> int:
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        self._drop_pending()
        self._position = position
        self._begin()

    def close(self) -> None:
        super().close()
        self._staged.close()
        self._begin()

    def _begin(self) -> None:
        """Take what comes next from where the stream stands."""
        self._staged.position = self._position
        self._next, self._error = self._position + self._offset, None

    def _take(self, position: int) -> list[np.ndarray]:
        """The staged batch of this position, when those before it have been taken."""
        with self._turn:
            while self._next != position and self._error is None:
                self._turn.wait()
            try:
                if self._error is not None:
                    raise self._error
                arrays = [buffer.array for buffer in self._staged.next()]
                self._next += self._stride
                return arrays
            except Exception as error:
                self._error = error
                raise
            finally:
                self._turn.notify_all()

    def _decode(self, position: int, arrays: Sequence[Any]) -> None:
        images, *others = arrays
        raw, *told, about = self._take(position)
        for target, array in zip(others, told, strict=True):
            target[...] = array
        self._engine.pin(raw)
        sizes = about[:, 0]
        edges = np.flatnonzero(np.diff(sizes == 0, prepend=False, append=False))
        for start, stop in edges.reshape(-1, 2).tolist():
            self._engine.put(raw[start:stop], start, images)
        places = np.flatnonzero(sizes)
        if not len(places):
            return
        begins = raw.ctypes.data + places * raw.strides[0]
        parts = about[places, 1:].reshape(-1, 4, 2)
        done = self._engine.decode_at(begins, sizes[places], parts, places, images)
        refused = places[~np.array(done)].tolist()
        for place in refused:
            self._decode_here(position + place, place, arrays)
        if len(refused) > _REFUSED * len(places):
            self._give_up()

    def _decode_here(self, position: int, place: int, arrays: Sequence[Any]) -> None:
        """Decode what an engine cannot, or say what is wrong with it."""
        images, *others = arrays
        own = [np.empty((1, *images.shape[1:]), np.uint8)]
        own += [np.empty((1, *each.shape[1:]), each.dtype) for each in others]
        self._staging.source.fill(position, own)
        self._engine.put(own[0], place, images)
        for target, array in zip(others, own[1:], strict=True):
            target[place] = array[0]

    def _give_up(self) -> None:
        with self._turn:
            if self._staging.share:
                self._staging.share = 0
                self._staged.close()  # the readers start anew, and decode all
                _log.info(
                    "%s: the GPU's engines refuse many of its JPEGs: the readers decode all",
                    self._title,
                )
