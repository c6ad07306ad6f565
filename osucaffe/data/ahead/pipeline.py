"""The prefetching pipeline: workers make batches ahead, in order, in a ring of buffers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...backends.tensor import Shape
from ...backends.uploads import pages
from ...trace import span

Fill = Callable[[int, Sequence[np.ndarray]], None]
Arrays = Sequence[tuple[Shape, str]]


class Buffer(NamedTuple):
    """One array of a batch (NumPy's, or a GPU's): shaped, flat, and its address."""

    array: Any
    flat: Any
    address: int


class Job(Protocol):
    """A part of a batch that is being made."""

    def result(self) -> object:
        """Wait until it is ready. Raises the worker's error, if any."""


class Workers(Protocol):
    """Makes batches in the background: threads, or processes (processes.py)."""

    slots: list[list[Buffer]]
    """The buffers of the batches."""
    tasks: int
    """The number of parts of batches per worker, finished or not, when all slots are in use."""

    def make(self, slot: int, position: int, part: int) -> Sequence[Job]:
        """Start making a batch, from this position of the stream on, in parts of that many records.

        Raises UserError if the workers cannot be started.
        """

    def drop(self, jobs: Sequence[Any]) -> None:
        """Return when no worker writes these any more, finished or not."""

    def close(self) -> None:
        """Stop the workers and wait for them. The next batch would start them again."""


class Threads:
    """Threads of this process: sufficient for work that releases the GIL.

    fill: as for Pipeline. arrays: shape and dtype of each array of a batch. first: allocates the
    first of them outside of host memory.
    """

    tasks = 1

    def __init__(
        self,
        fill: Fill,
        arrays: Arrays,
        slots: int,
        threads: int,
        *,
        first: Callable[[Shape, str], Buffer] | None = None,
    ) -> None:
        self._fill, self._threads = fill, threads
        self._pool: ThreadPoolExecutor | None = None
        makers = [first or allocate, *[allocate] * (len(arrays) - 1)]
        self.slots = [
            [make(*spec) for make, spec in zip(makers, arrays, strict=True)] for _ in range(slots)
        ]

    def make(self, slot: int, position: int, part: int) -> list[Future[None]]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="osucaffe-data")
        arrays = [buffer.array for buffer in self.slots[slot]]
        return [
            self._pool.submit(self._make, position + at, [a[at : at + part] for a in arrays])
            for at in range(0, len(arrays[0]), part)
        ]

    def _make(self, position: int, arrays: Sequence[np.ndarray]) -> None:
        with span("make a batch", "data"):
            self._fill(position, arrays)

    def drop(self, jobs: Sequence[Future[None]]) -> None:
        for job in jobs:
            if not job.cancel():
                job.exception()  # waits until the thread has let go of the buffer

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class Pipeline:
    """Yields the batches of a stream of records one by one, made ahead by threads or processes.

    fill(position, arrays) writes the records position, position + 1, ... of the stream into the
    arrays, a batch or a part of one; it runs on several threads, each with separate arrays.
    shapes: of the arrays of one batch; the first extent of each is the batch size.
    dtypes: of these arrays (default: all float32).
    depth: batches made ahead (0: none, each is made when requested).
    held: how many of the last returned batches stay valid.
    threads: the number of workers. If there are more than batches, several share one.
    workers: creates them, with the first four arguments of Threads.
    """

    def __init__(
        self,
        fill: Fill,
        shapes: Sequence[Shape],
        *,
        dtypes: Sequence[str] = (),
        depth: int,
        held: int = 1,
        threads: int = 1,
        workers: Callable[[Fill, Arrays, int, int], Workers] = Threads,
    ) -> None:
        self._fill, self._depth = fill, depth
        self._batch_size = shapes[0][0]
        arrays = list(zip(shapes, dtypes or ["float32"] * len(shapes), strict=True))
        self._workers = workers(fill, arrays, depth + held, threads)
        self._free = deque(range(depth + held))
        parts = -(-threads * self._workers.tasks // max(depth, 1))
        self._part = -(-self._batch_size // parts)
        self._pending: deque[tuple[Sequence[Job], int]] = deque()
        self._held = held
        self._given: deque[int] = deque()
        self._position = 0
        self._offset = 0
        self._stride = self._batch_size

    def split(self, rank: int, ranks: int) -> None:
        """Return only every `ranks`-th batch, from batch `rank` on: `ranks` pipelines together give
        the stream. Positions count the entire stream.
        """
        self._drop_pending()
        self._offset, self._stride = rank * self._batch_size, ranks * self._batch_size

    @property
    def position(self) -> int:
        """The number of records returned so far. Set it to continue from another position."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        self._drop_pending()
        self._position = position

    def next(self) -> list[Buffer]:
        """The next batch. It stays valid until the batch after it is requested (see `held`).

        Raises the error of the batch's worker (again, if called again).
        """
        if not self._depth:
            batch = self._workers.slots[0]
            with span("make a batch", "data"):
                self._fill(self._position + self._offset, [buffer.array for buffer in batch])
            self._position += self._stride
            return batch
        self._fill_ring()
        jobs, slot = self._pending[0]
        for job in jobs:
            job.result()
        self._pending.popleft()
        self._given.append(slot)
        if len(self._given) > self._held:
            self._free.append(self._given.popleft())
        self._position += self._stride
        self._fill_ring()
        return self._workers.slots[slot]

    def close(self) -> None:
        """Stop the workers and wait for them. The next batch would start them again."""
        self._workers.close()
        self._free_pending()

    def _fill_ring(self) -> None:
        while self._free:
            position = self._position + self._offset + self._stride * len(self._pending)
            jobs = self._workers.make(self._free[0], position, self._part)
            self._pending.append((jobs, self._free.popleft()))

    def _drop_pending(self) -> None:
        self._workers.drop([job for jobs, _ in self._pending for job in jobs])
        self._free_pending()

    def _free_pending(self) -> None:
        self._free.extend(slot for _, slot in self._pending)
        self._pending.clear()


def allocate(shape: Shape, dtype: str = "float32") -> Buffer:
    """An array of zeros on pages of its own, which a GPU can pin."""
    count = int(np.prod(shape))
    flat = np.frombuffer(pages(count * np.dtype(dtype).itemsize), dtype, count)
    return Buffer(flat.reshape(shape), flat, flat.ctypes.data)
