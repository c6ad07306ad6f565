"""Reductions of float32 arrays that travel in 16 bits: half the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..algorithms import Operation
from ..communicator import Communicator, Wrapper
from ..host import HostMath
from .kernels import DeviceMath
from .on_stream import OnStream

TYPES = {"float16": np.float16, "bfloat16": np.uint16}
REDUCTIONS = (Operation.REDUCE, Operation.ALL_REDUCE, Operation.REDUCE_SCATTER)


def half_precision(
    inner: Communicator, dtype: str, *, device: bool, background: bool
) -> Communicator:
    """A communicator that does reductions of float32 arrays in float16 or bfloat16, all else as
    `inner`, which runs in the foreground. Sums are rounded to 16 bits at every rank that adds.
    """
    if isinstance(inner, OnStream):
        return NarrowedOnStream(inner, dtype)
    return Narrowed(inner, dtype, device=device, background=background)


class _Narrow:
    """Arrays in 16 bits.

    It takes memory when an array is larger than all before, and keeps what it had: CUDA graphs may
    have captured it. (So the first run of what is to be captured must not be captured.)
    """

    def __init__(self, math: HostMath | DeviceMath, dtype: str) -> None:
        self.math: Any = math
        self._dtype = np.dtype(TYPES[dtype])
        self._memory: list[Any] = []

    def like(self, array: Any) -> Any:
        """An array of that many elements, in memory that the next call gives again."""
        if not self._memory or self._memory[-1].size < array.size:
            self._memory.append(self.math.empty(array.size, self._dtype))
        return self._memory[-1][: array.size]


class Narrowed(Wrapper):
    """See `half_precision`. device: the arrays are device arrays."""

    def __init__(
        self, inner: Communicator, dtype: str, *, device: bool = False, background: bool = False
    ) -> None:
        super().__init__(inner, background=background)
        self._narrow = _Narrow(DeviceMath() if device else HostMath(), dtype)

    def run(self, operation: Operation, array: Any, root: int = 0) -> None:
        """Do one collective operation; float32 that is to be added goes in 16 bits."""
        if operation not in REDUCTIONS or array.dtype != np.float32:
            self._inner.carry(operation, array, root)
            return
        bits, math = self._narrow.like(array), self._narrow.math
        math.narrow(array, bits)
        math.finish()
        self._inner.carry(operation, bits, root)
        math.widen(bits, array)
        math.finish()


class NarrowedOnStream(Wrapper, OnStream):
    """See `half_precision`. All of it can be captured in a CUDA graph, after a first run."""

    def __init__(self, inner: OnStream, dtype: str) -> None:
        OnStream.__init__(self, inner.rank, inner.size, level=inner.level)
        self._inner: OnStream = inner
        self._narrow = _Narrow(DeviceMath(), dtype)

    def enqueue(self, operation: Operation, array: Any, root: int, stream: Any) -> None:
        """Enqueue one of the collective operations on a stream."""
        if operation not in REDUCTIONS or array.dtype != np.float32:
            self._inner.launch(operation, array, root, stream)
            return
        bits, math = self._narrow.like(array), self._narrow.math
        math.narrow(array, bits, stream)
        self._inner.launch(operation, bits, root, stream)
        math.widen(bits, array, stream)
