"""The staging of device arrays in pinned host memory: for MPI libraries without CUDA support,
and the mirrors that channels send from and receive into.

A mirror is a flat array in host memory whose parts are copied to and from the device while it
computes. A host array is its own mirror. Once a mirror exists, nothing is allocated and the device
is never synchronized as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .algorithms import Operation, Step
from .communicator import Communicator, Wrapper

CHUNK = 1 << 20
"""Bytes that are copied at a time: while one chunk is with MPI, the next one comes and the last
one goes."""


class Staged(Wrapper):
    """Does operations on device arrays by a communicator for host arrays, over pinned memory.

    inner: runs in the foreground. Reductions and broadcasts go in chunks, in a pipeline; operations
    defined by the parts of the array (`part`) go in one piece.
    """

    def __init__(self, inner: Communicator, *, background: bool = False) -> None:
        super().__init__(inner, background=background)
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self._down, self._up = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self._pinned = np.empty(0, np.uint8)

    def run(self, operation: Operation, array: Any, root: int = 0) -> None:
        """Do one collective operation; the array must be ready."""
        self._device.use()  # this may be a thread of the background
        host = self._host(array)
        chunked = operation in (Operation.BROADCAST, Operation.REDUCE, Operation.ALL_REDUCE)
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
            self._inner.carry(operation, host[piece], root)
            array[piece].set(host[piece], stream=self._up)
        self._up.synchronize()

    def transfer(self, array: Any, step: Step) -> None:
        """Do the transfers of a step."""
        self._device.use()
        host = self._host(array)
        array.get(stream=self._down, out=host, blocking=True)
        self._inner.transfer(host, step)
        if step.receives:
            array.set(host, stream=self._up)
            self._up.synchronize()

    def _host(self, array: Any) -> np.ndarray:
        """Pinned memory like the array; the same memory each time."""
        if self._pinned.size < array.nbytes:
            memory = self._cupy.cuda.alloc_pinned_memory(array.nbytes)
            self._pinned = np.frombuffer(memory, np.uint8, array.nbytes)
        return self._pinned[: array.nbytes].view(array.dtype)


class Mirror:
    """Of an array of the host's: the array itself, whose parts are always there.

    parts: the slices that travel by themselves; they are named by their numbers.
    """

    def __init__(self, array: np.ndarray, parts: Sequence[slice]) -> None:
        self.host = array

    def fetch(self, part: int, stream: Any = None) -> None:
        """Start copying a part to `host`, after all work enqueued on the stream."""

    def fetched(self, part: int) -> bool:
        """Whether that copy is complete: at once, and on any thread."""
        return True

    def give(self, part: int) -> None:
        """Begin to copy a part of `host` to the array; on any thread."""

    def follow(self, part: int, stream: Any = None) -> None:
        """Let later work on the stream wait for that copy."""


class DeviceMirror(Mirror):
    """Of an array on the current GPU: pinned memory, and copies on a dedicated stream."""

    def __init__(self, array: Any, parts: Sequence[slice]) -> None:
        import cupy

        memory = cupy.cuda.alloc_pinned_memory(max(1, array.nbytes))
        super().__init__(np.frombuffer(memory, array.dtype, array.size), parts)
        self._device = cupy.cuda.Device()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._pairs = [(array[part], self.host[part]) for part in parts]
        self._before, self._done = (
            [cupy.cuda.Event(disable_timing=True) for _ in parts] for _ in range(2)
        )

    def fetch(self, part: int, stream: Any = None) -> None:
        array, host = self._pairs[part]
        self._before[part].record(stream)
        self._stream.wait_event(self._before[part])
        array.get(stream=self._stream, out=host, blocking=False)
        self._done[part].record(self._stream)

    def fetched(self, part: int) -> bool:
        self._device.use()
        return bool(self._done[part].done)

    def give(self, part: int) -> None:
        self._device.use()
        array, host = self._pairs[part]
        array.set(host, stream=self._stream)
        self._done[part].record(self._stream)

    def follow(self, part: int, stream: Any = None) -> None:
        stream.wait_event(self._done[part])


def mirror(array: Any, parts: Sequence[slice]) -> Mirror:
    """The mirror of an array of the host's, or of the device's that is in use."""
    return (Mirror if isinstance(array, np.ndarray) else DeviceMirror)(array, parts)


def to_host(array: Any) -> np.ndarray:
    """What the array holds when all has run that is enqueued on the current stream."""
    values: np.ndarray = array if isinstance(array, np.ndarray) else array.get()
    return values


def from_host(array: Any, values: np.ndarray) -> None:
    """Write the array after all work on the current stream, and wait for it."""
    if isinstance(array, np.ndarray):
        array[:] = values
    else:
        array.set(values)
