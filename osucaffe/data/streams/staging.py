"""Batches of JPEGs that a device decodes; readers decode those that it cannot.

Readers stage a batch: they copy JPEGs, still encoded, to the memory of their pixels, and decode the
others. Here each only has to be passed on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ...backends.records import ImageDecoder, Part
from ...backends.tensor import Shape
from ..ahead.parallel_map import BadRecords
from ..ahead.pipeline import Buffer, Pipeline, Threads, Workers
from .source import DatumSource

_log = logging.getLogger("osucaffe")

ABOUT = 9
"""Numbers per record: the bytes of its JPEG (0: it is decoded), and its Part."""
_AHEAD = 4
"""Batches that are decoded ahead, and threads for it."""
_REFUSED = 0.25
"""The share of a batch above which refusals by the decoder turn it off."""


class Staging:
    """A source whose batches have plain JPEGs still encoded, for a device to decode.

    hands_on: whether they do.
    """

    def __init__(self, source: DatumSource) -> None:
        self.source, self.hands_on = source, True

    @property
    def bad(self) -> BadRecords:
        """The handling of unusable records."""
        return self.source.bad

    def fill(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        """Like the source's, with a further array, int32 (N, ABOUT)."""
        raw, about = arrays[0], arrays[-1]
        begin, record = raw.ctypes.data, raw.strides[0]
        about[:] = 0

        def take(jpeg: memoryview, part: Part, index: int, images: np.ndarray) -> bool:
            index += (images.ctypes.data - begin) // record
            row = raw[index].reshape(-1)
            if len(jpeg) > len(row):
                return False
            row[: len(jpeg)] = jpeg
            about[index] = (len(jpeg), *chain(*part))
            return True

        self.source.fill(position, arrays[:-1], take if self.hands_on else None)


class DecodedBatches(Pipeline):
    """The batches of a Staging, decoded by a device into its memory.

    shapes, dtypes: of a batch: raw records (N, height, width, channels), the table of `transform`,
    and the labels, if they are wanted. first: makes the first of these, in the device's memory.
    readers: how many make `depth` batches ready for it, and workers what these are.
    """

    def __init__(
        self,
        source: DatumSource,
        decoder: ImageDecoder,
        shapes: Sequence[Shape],
        *,
        dtypes: Sequence[str],
        first: Callable[[Shape, str], Buffer],
        readers: int,
        workers: Callable[..., Workers],
        depth: int,
        title: str,
    ) -> None:
        _log.info("%s: the GPU decodes its JPEGs (--decode)", title)
        self._staging, self._decoder, self._title = Staging(source), decoder, title
        self._staged = Pipeline(
            self._staging.fill,
            [*shapes, (shapes[0][0], ABOUT)],
            dtypes=[*dtypes, "int32"],
            depth=depth,
            held=_AHEAD + 1,  # as many as may be taken before the first of them is decoded
            threads=readers,
            workers=workers,
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
        """Restart from the current position of the stream."""
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
        raw, *rest, about = self._take(position)
        for target, array in zip(others, rest, strict=True):
            target[...] = array
        self._decoder.pin(raw)
        sizes = about[:, 0]
        edges = np.flatnonzero(np.diff(sizes == 0, prepend=False, append=False))
        for start, stop in edges.reshape(-1, 2).tolist():
            self._decoder.put(raw[start:stop], start, images)
        indices = np.flatnonzero(sizes)
        if not len(indices):
            return
        begins = raw.ctypes.data + indices * raw.strides[0]
        parts = about[indices, 1:].reshape(-1, 4, 2)
        done = self._decoder.decode(begins, sizes[indices], parts, indices, images)
        refused = indices[~done].tolist()
        for index in refused:
            self._decode_here(position + index, index, arrays)
        if len(refused) > _REFUSED * len(indices):
            self._give_up()

    def _decode_here(self, position: int, index: int, arrays: Sequence[Any]) -> None:
        """Decode an image that the decoder refuses, or raise its error."""
        images, *others = arrays
        decoded = [np.empty((1, *images.shape[1:]), np.uint8)]
        decoded += [np.empty((1, *array.shape[1:]), array.dtype) for array in others]
        self._staging.source.fill(position, decoded)
        self._decoder.put(decoded[0], index, images)
        for target, array in zip(others, decoded[1:], strict=True):
            target[index] = array[0]

    def _give_up(self) -> None:
        with self._turn:
            if self._staging.hands_on:
                self._staging.hands_on = False
                self._staged.close()  # the readers start again, and decode all
                _log.info(
                    "%s: the GPU's decoder refuses many of its JPEGs: the readers decode all",
                    self._title,
                )
