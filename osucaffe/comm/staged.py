"""Owns the staging of device arrays through host memory, for MPI libraries that need it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .communicator import Communicator, Wrapper

CHUNK = 1 << 20
"""Bytes that are copied at a time: while one chunk is with MPI, the next one comes and the last
one goes."""


class Staged(Wrapper):
    """Does operations on device arrays by a communicator for host arrays, over pinned memory.

    inner: runs in the foreground. Reductions and broadcasts go in chunks, in a pipeline; what
    depends on the parts of the whole array goes at once.
    """

    def __init__(self, inner: Communicator, *, background: bool = False) -> None:
        super().__init__(inner, background=background)
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self._down, self._up = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._pinned = np.empty(0, np.uint8)

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        """Do one collective operation; the array must be ready."""
        self._device.use()  # this may be a thread of the background
        host = self._host(array)
        chunked = operation in ("broadcast", "reduce", "all_reduce")
        step = max(1, CHUNK // array.itemsize) if chunked else array.size
        pieces = [slice(start, start + step) for start in range(0, array.size, step)]
        arrived = []
        for piece in pieces:
            array[piece].get(stream=self._down, out=host[piece], blocking=False)
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(self._down)
            arrived.append(event)
        for piece, event in zip(pieces, arrived, strict=True):
            event.synchronize()
            self._inner.run(operation, host[piece], root)
            array[piece].set(host[piece], stream=self._up)
        self._up.synchronize()

    def transfer(self, array: Any, *, to: int | None = None, source: int | None = None) -> None:
        """Send the array, or receive it."""
        self._device.use()
        host = self._host(array)
        if to is not None:
            array.get(stream=self._down, out=host, blocking=True)
        self._inner.transfer(host, to=to, source=source)
        if source is not None:
            array.set(host, stream=self._up)
            self._up.synchronize()

    def _host(self, array: Any) -> np.ndarray:
        """Pinned memory like the array; the same memory each time."""
        if self._pinned.size < array.nbytes:
            memory = self._cupy.cuda.alloc_pinned_memory(array.nbytes)
            self._pinned = np.frombuffer(memory, np.uint8, array.nbytes)
        return self._pinned[: array.nbytes].view(array.dtype)
