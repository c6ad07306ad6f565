"""Owns the reading of records that are kept: each once, in the order in which they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ..backends.tensor import Step, Tensor
from ..backends.uploads import Uploads

Read = Callable[[int, int, Sequence[np.ndarray]], None]
Target = Tensor | np.ndarray
Arrays = list[np.ndarray]

_PIECE = 4 << 20
"""Bytes that are read and sent at once."""
_MOST = 4096
"""Records of a piece."""
_SPARE = 2
"""Pieces that are on their way while each thread reads one."""


class Unlike(Exception):
    """A record that cannot be kept as the others are, with the reason."""


class Filler:
    """Brings records to where they stay; who needs some asks for them, and is told when they come.

    read(start, stop, arrays): writes the records start .. stop - 1 into arrays of rows, one for
    each of targets, which have a row for each of the `count` records: tensors, or arrays of the
    host. It runs on several threads, and what it raises comes out of `bring`, in its turn.
    """

    def __init__(
        self, read: Read, count: int, targets: Sequence[Target], uploads: Uploads, threads: int
    ) -> None:
        self._read, self._targets, self._uploads = read, targets, uploads
        self._forms = [(target.shape[1:], str(target.dtype)) for target in targets]
        row = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self._forms)
        self._size = max(1, min(count, _MOST, _PIECE // max(row, 1)))
        self._piece = np.full(count, -1, np.int32)
        """The number of the piece that brings each record."""
        self._asked = self._pieces = self._brought = 0
        self._waiting: deque[np.ndarray] = deque()
        self._reading: deque[tuple[np.ndarray, Arrays, Future[None]]] = deque()
        self._leaving: deque[tuple[Arrays, Step]] = deque()
        self._unmade = threads + _SPARE
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    @property
    def is_done(self) -> bool:
        """Whether all records have been brought."""
        return self._asked == len(self._piece) and self._brought == self._pieces

    @property
    def is_idle(self) -> bool:
        """Whether there are records that nobody asked for, and threads that could read them."""
        return self._asked < len(self._piece) and not self._waiting

    def ask(self, numbers: np.ndarray) -> np.ndarray:
        """Ask for the records (..., N); returns which piece brings the last of each row."""
        flat = numbers.ravel()
        missing = flat[self._piece[flat] < 0]
        if len(missing):
            _, first = np.unique(missing, return_index=True)
            missing = missing[np.sort(first)]
            for at in range(0, len(missing), self._size):
                part = np.sort(missing[at : at + self._size])
                self._piece[part] = self._pieces
                self._pieces += 1
                self._waiting.append(part)
            self._asked += len(missing)
            self._submit()
        due: np.ndarray = self._piece[numbers].max(axis=-1)
        return due

    def has(self, piece: np.ndarray) -> np.ndarray:
        """Which of the pieces have been sent."""
        return piece < self._brought

    def bring(self, piece: int) -> None:
        """Send what has been read, up to this piece at least: what follows `receive` finds it."""
        self._submit()
        while self._reading:
            numbers, arrays, future = self._reading[0]
            if self._brought > piece and (not future.done() or future.exception()):
                break
            future.result()
            self._reading.popleft()
            self._leaving.append((arrays, self._send(numbers, arrays)))
            self._brought += 1
            self._submit()
        if self.is_done:
            self.close()

    def close(self) -> None:
        """Stop the threads, wait for them, and let go of their memory; `bring` starts others."""
        for _, _, future in self._reading:
            future.cancel()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._waiting.extendleft(numbers for numbers, _, _ in reversed(self._reading))
        self._reading.clear()
        for _, left in self._leaving:
            left()
        self._leaving.clear()
        self._unmade = self._threads + _SPARE

    def _submit(self) -> None:
        while self._waiting and (arrays := self._memory()):
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="osucaffe-data")
            numbers = self._waiting.popleft()
            future = self._pool.submit(self._make, numbers, arrays)
            self._reading.append((numbers, arrays, future))

    def _memory(self) -> Arrays | None:
        """Memory for a piece, if there is some that is neither being read to nor still sent."""
        if self._unmade:
            self._unmade -= 1
            return [self._uploads.memory((self._size, *s), dtype) for s, dtype in self._forms]
        if self._leaving:
            arrays, left = self._leaving.popleft()
            left()
            return arrays
        return None

    def _make(self, numbers: np.ndarray, arrays: Arrays) -> None:
        for at, start, stop in _runs(numbers):
            piece = slice(at, at + stop - start)
            self._read(start, stop, [each[piece] for each in arrays])

    def _send(self, numbers: np.ndarray, arrays: Arrays) -> Step:
        left: Step = _nothing
        for at, start, stop in _runs(numbers):
            for target, array in zip(self._targets, arrays, strict=True):
                rows = array[at : at + stop - start]
                if isinstance(target, Tensor):
                    left = self._uploads.send(rows, target, start)
                else:
                    target[start:stop] = rows
        return left


def _runs(numbers: np.ndarray) -> list[tuple[int, int, int]]:
    """Rising numbers as runs: where each begins among them, its first number, its last plus 1."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)
    stops = np.append(starts[1:], len(numbers))
    firsts = numbers[starts]
    return list(
        zip(starts.tolist(), firsts.tolist(), (firsts + stops - starts).tolist(), strict=True)
    )


def _nothing() -> None:
    pass
