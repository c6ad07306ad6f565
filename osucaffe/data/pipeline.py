"""Owns prefetching: batches that threads make ahead, in order, in a ring of buffers."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ..backends.tensor import Shape
from ..trace import span

Fill = Callable[[int, Sequence[np.ndarray]], None]


class Buffer(NamedTuple):
    """One array of a batch (NumPy's, or a GPU's): as the reader sees it, flat, and its address."""

    array: Any
    flat: Any
    address: int


class Pipeline:
    """Gives the batches of a stream of records one by one, made ahead by threads.

    fill(position, arrays) writes the records position, position + 1, ... of the stream into the
    arrays, a batch or a part of one; it runs on several threads, each with arrays of its own.
    shapes: of the arrays of one batch; the first extent of each is the batch size.
    dtypes: of these arrays (default: all float32).
    first: makes the first of these arrays, elsewhere than in the host's memory.
    depth: batches made ahead (0: none, each is made when it is asked for).
    threads: that make them. If they are more than the batches, several share one.
    """

    def __init__(
        self,
        fill: Fill,
        shapes: Sequence[Shape],
        *,
        dtypes: Sequence[str] = (),
        first: Callable[[Shape, str], Buffer] | None = None,
        depth: int,
        threads: int = 1,
    ) -> None:
        self._fill = fill
        self._batch_size = shapes[0][0]
        # One more than are made ahead: the batch that was given out last.
        arrays = list(zip(shapes, dtypes or ["float32"] * len(shapes), strict=True))
        makers = [first or allocate, *[allocate] * (len(arrays) - 1)]
        self._free = deque(
            [make(*each) for make, each in zip(makers, arrays, strict=True)]
            for _ in range(depth + 1)
        )
        self._threads = threads if depth else 0
        parts = -(-threads // max(depth, 1))
        self._part = -(-self._batch_size // parts)
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[tuple[list[Future[None]], list[Buffer]]] = deque()
        self._given: list[Buffer] | None = None
        self._position = 0
        self._offset = 0
        self._stride = self._batch_size

    def split(self, rank: int, ranks: int) -> None:
        """Give out only every `ranks`-th batch, from batch `rank` on: `ranks` pipelines that count
        together give out the stream. Positions are those of the stream as a whole.
        """
        self._drop_pending()
        self._offset, self._stride = rank * self._batch_size, ranks * self._batch_size

    @property
    def position(self) -> int:
        """How many records were given out. Set it, and those from there on come next."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        self._drop_pending()
        self._position = position

    def next(self) -> list[Buffer]:
        """The next batch. It stays as it is until the batch after it is asked for.

        Raises what the thread that made the batch raised (again, if asked again).
        """
        if not self._threads:
            batch = self._free[0]
            self._make(self._position + self._offset, [buffer.array for buffer in batch])
        else:
            self._fill_ring()
            futures, batch = self._pending[0]
            for future in futures:
                future.result()
            self._pending.popleft()
            if self._given is not None:
                self._free.append(self._given)
            self._given = batch
        self._position += self._stride
        if self._threads:
            self._fill_ring()
        return batch

    def close(self) -> None:
        """Stop the threads and wait for them. The next batch would start them again."""
        self._drop_pending()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _fill_ring(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="osucaffe-data")
        while self._free:
            batch = self._free.popleft()
            position = self._position + self._offset + self._stride * len(self._pending)
            futures = [
                self._pool.submit(
                    self._make, position + at, [b.array[at : at + self._part] for b in batch]
                )
                for at in range(0, self._batch_size, self._part)
            ]
            self._pending.append((futures, batch))

    def _make(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        with span("make a batch", "data"):
            self._fill(position, arrays)

    def _drop_pending(self) -> None:
        for futures, batch in self._pending:
            for future in futures:
                if not future.cancel():
                    future.exception()  # waits until the thread has let go of the buffer
            self._free.append(batch)
        self._pending.clear()


def allocate(shape: Shape, dtype: str = "float32") -> Buffer:
    """An array of zeros on pages of its own (huge ones if it is large), which a GPU can pin."""
    count = int(np.prod(shape))
    nbytes = max(1, count * np.dtype(dtype).itemsize)
    if sys.platform == "linux":
        # Private: huge pages, which a stream of writes is faster to, are for such memory only.
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    else:
        pages = mmap.mmap(-1, nbytes)
    flat = np.frombuffer(pages, dtype, count)
    return Buffer(flat.reshape(shape), flat, flat.ctypes.data)
