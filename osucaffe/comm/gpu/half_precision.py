"""Owns reductions of float32 arrays that travel in 16 bits: half the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..communicator import Communicator, Wrapper
from ..host import HostMath, widen
from .kernels import kernel, launch_over
from .on_stream import OnStream

TYPES = {"float16": np.float16, "bfloat16": np.uint16}
REDUCTIONS = ("reduce", "all_reduce", "reduce_scatter")


def half_precision(
    inner: Communicator, dtype: str, *, device: bool, background: bool
) -> Communicator:
    """A communicator that does reductions of float32 arrays in float16 or bfloat16, all else as
    `inner`, which runs in the foreground. Sums are rounded to 16 bits at every rank that adds.
    """
    if isinstance(inner, OnStream):
        return NarrowedOnStream(inner, dtype)
    return Narrowed(inner, dtype, device=device, background=background)


class _Host:
    """Conversions of arrays in host memory."""

    def __init__(self, dtype: str) -> None:
        self._math = HostMath()
        self._bits = np.empty(0, TYPES[dtype])

    def narrow(self, array: np.ndarray) -> np.ndarray:
        """The array in 16 bits, in memory that the next call overwrites."""
        if self._bits.size < array.size:
            self._bits = np.empty(array.size, self._bits.dtype)
        bits = self._bits[: array.size]
        self._math.narrow(array, bits)
        return bits

    def widen(self, bits: np.ndarray, array: np.ndarray) -> None:
        """array = the numbers in bits."""
        widen(bits, array)


class _Device:
    """Conversions of device arrays, enqueued on a stream; without one they are complete.

    It takes memory when an array is larger than all before, and keeps what it had: CUDA graphs may
    have captured it. (So the first run of what is to be captured must not be captured.)
    """

    def __init__(self, dtype: str) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._dtype = np.dtype(TYPES[dtype])
        self._memory: list[Any] = []

    def narrow(self, array: Any, stream: Any = None) -> Any:
        """The array in 16 bits, in memory that the next call overwrites."""
        self._device.use()  # this may be a thread of the background
        if not self._memory or self._memory[-1].size < array.size:
            self._memory.append(self._cupy.empty(array.size, self._dtype))
        bits = self._memory[-1][: array.size]
        self._launch("narrow", array, bits, stream)
        return bits

    def widen(self, bits: Any, array: Any, stream: Any = None) -> None:
        """array = the numbers in bits."""
        self._launch("widen", array, bits, stream)

    def _launch(self, name: str, array: Any, bits: Any, stream: Any) -> None:
        function = kernel("half_precision", name, self._dtype.name)
        arguments = array, bits, np.int64(array.size)
        launch_over(function, array.size, arguments, stream or self._stream)
        if stream is None:
            self._stream.synchronize()


class Narrowed(Wrapper):
    """See `half_precision`. device: the arrays are device arrays."""

    def __init__(
        self, inner: Communicator, dtype: str, *, device: bool = False, background: bool = False
    ) -> None:
        super().__init__(inner, background=background)
        self._convert: _Host | _Device = _Device(dtype) if device else _Host(dtype)

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        """Do one collective operation; float32 that is to be added goes in 16 bits."""
        if operation not in REDUCTIONS or array.dtype != np.float32:
            self._inner.run(operation, array, root)
            return
        bits = self._convert.narrow(array)
        self._inner.run(operation, bits, root)
        self._convert.widen(bits, array)


class NarrowedOnStream(Wrapper, OnStream):
    """See `half_precision`. All of it can be captured in a CUDA graph, after a first run."""

    def __init__(self, inner: OnStream, dtype: str) -> None:
        OnStream.__init__(self, inner.rank, inner.size, level=inner.level)
        self._inner: OnStream = inner
        self._convert = _Device(dtype)

    def enqueue(self, operation: str, array: Any, root: int, stream: Any) -> None:
        """Enqueue one of the collective operations on a stream."""
        if operation not in REDUCTIONS or array.dtype != np.float32:
            self._inner.enqueue(operation, array, root, stream)
            return
        bits = self._convert.narrow(array, stream)
        self._inner.enqueue(operation, bits, root, stream)
        self._convert.widen(bits, array, stream)
