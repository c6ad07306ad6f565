"""Owns reductions that travel in 16 bits: half the bytes, for float32 arrays in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from .communicator import Communicator
from .host import HostMath, widen

TYPES = {"float16": np.float16, "bfloat16": np.uint16}


class Narrowed(Communicator):
    """Does reduce and all_reduce of float32 arrays in float16 or bfloat16, all else as `inner`.

    Sums are rounded to 16 bits at every rank that adds. inner: a communicator in the foreground.
    """

    def __init__(self, inner: Communicator, dtype: str, *, background: bool = False) -> None:
        super().__init__(inner.rank, inner.size, level=inner.level, background=background)
        self._inner = inner
        self._dtype = TYPES[dtype]
        self._math = HostMath()
        self._narrow = np.empty(0, self._dtype)

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        """Do one collective operation; float32 that is to be added goes in 16 bits."""
        if operation not in ("reduce", "all_reduce") or array.dtype != np.float32:
            self._inner.run(operation, array, root)
            return
        if self._narrow.size < array.size:
            self._narrow = np.empty(array.size, self._dtype)
        narrow = self._narrow[: array.size]
        self._math.narrow(array, narrow)
        self._inner.run(operation, narrow, root)
        widen(narrow, array)

    def transfer(self, array: Any, *, to: int | None = None, source: int | None = None) -> None:
        """Send or receive, as it is."""
        self._inner.transfer(array, to=to, source=source)

    def close(self) -> None:
        """Close the communicator inside, too."""
        super().close()
        self._inner.close()
