"""Owns batches of bytes on the GPU that threads fill beside the computation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ...tensor import Shape

if TYPE_CHECKING:
    from ..backend import Cuda


class BatchMemory:
    """Gives memory for batches, and copies records there, on a stream: a Filler (records.py)."""

    def __init__(self, backend: Cuda, stream: Any) -> None:
        self._backend, self._runtime = backend, backend.cupy.cuda.runtime
        self._stream = stream

    def allocate(self, shape: Shape) -> Any:
        """Memory on the GPU for a batch: uint8 of this shape."""
        memory = self._backend.allocate(math.prod(shape)).reshape(shape)
        self._backend.synchronize()  # what had it before may be at work on another stream
        return memory

    def put(self, image: np.ndarray, place: int, batch: Any) -> None:
        """Copy a record, or some behind each other, to a place of a batch."""
        self._backend.device.use()  # each thread has a current device of its own
        address = int(batch.data.ptr) + place * (batch.nbytes // len(batch))
        kind = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(address, image.ctypes.data, image.nbytes, kind, self._stream.ptr)
        self._stream.synchronize()
