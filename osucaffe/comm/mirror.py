"""Owns mirrors: a flat array in host memory, where channels send from and receive into, whose parts
travel between there and the device beside what computes. An array of the host's is its own mirror.

Nothing is allocated, and nobody waits for the whole device, once a mirror is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class Mirror:
    """Of an array of the host's: the array itself, whose parts are always there.

    parts: the slices that travel by themselves; they are named by their numbers.
    """

    def __init__(self, array: np.ndarray, parts: Sequence[slice]) -> None:
        self.host = array
        self.parts = parts

    def fetch(self, part: int, stream: Any = None) -> None:
        """Begin to copy a part to `host`, behind all that is enqueued on the stream."""

    def fetched(self, part: int) -> bool:
        """Whether that copy is complete: at once, and on any thread."""
        return True

    def give(self, part: int) -> None:
        """Begin to copy a part of `host` to the array; on any thread."""

    def follow(self, part: int, stream: Any = None) -> None:
        """Let what is enqueued on the stream from now on run behind that copy."""


class DeviceMirror(Mirror):
    """Of an array on the GPU that is in use: pinned memory, and copies on a stream of its own."""

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
    """Set the array, behind all that is enqueued on the current stream, and wait for it."""
    if isinstance(array, np.ndarray):
        array[:] = values
    else:
        array.set(values)
