"""Arithmetic on arrays in host memory for reductions: addition, and the two 16-bit floats.

NumPy has no bfloat16: an array of uint16 holds the bits of bfloat16 numbers. Nothing here
allocates once the scratch memory stands.
"""

from __future__ import annotations

import numpy as np

DTYPES = ("float32", "float64", "float16", "int32", "uint16")
"""The types that can be reduced; uint16 holds bfloat16."""

_PIECE = 1 << 15  # elements widened at a time: they stay in cache
_NAN = np.uint16(0x7FC0)


class HostMath:
    """Adds arrays and converts between float32 and 16 bits. Not for two threads at once."""

    native = True
    """MPI's native collectives take such arrays."""

    def __init__(self) -> None:
        self._scratch = np.empty(0, np.uint8)
        self._wide = [np.empty(_PIECE, np.float32) for _ in range(2)]
        self._bits = np.empty(_PIECE, np.uint32)
        self._mask = np.empty(_PIECE, bool)

    empty = staticmethod(np.empty)
    """Memory of that many elements of a type."""

    def scratch(self, nbytes: int) -> np.ndarray:
        """At least nbytes of memory (uint8); the same memory each time."""
        if self._scratch.size < nbytes:
            self._scratch = np.empty(nbytes, np.uint8)
        return self._scratch

    def add(self, target: np.ndarray, source: np.ndarray) -> None:
        """target += source; bfloat16 is added in float32 and rounded."""
        if target.dtype != np.uint16:
            np.add(target, source, out=target)
            return
        for start in range(0, target.size, _PIECE):
            piece = slice(start, start + _PIECE)
            a, b = (wide[: target[piece].size] for wide in self._wide)
            widen(target[piece], a)
            widen(source[piece], b)
            np.add(a, b, out=a)
            self._narrow(a, target[piece])

    def finish(self) -> None:
        """All that was added is there: `add` returns when it is done."""

    def narrow(self, values: np.ndarray, out: np.ndarray) -> None:
        """out = values, from float32 to float16 or bfloat16, rounded to the nearest."""
        if out.dtype == np.float16:
            np.copyto(out, values, casting="same_kind")
            return
        for start in range(0, values.size, _PIECE):
            piece = slice(start, start + _PIECE)
            self._narrow(values[piece], out[piece])

    def widen(self, bits: np.ndarray, out: np.ndarray) -> None:
        """See `widen`."""
        widen(bits, out)

    def _narrow(self, values: np.ndarray, out: np.ndarray) -> None:
        """float32 to bfloat16, at most one piece: to nearest, ties to even; NaN stays NaN."""
        bits = values.view(np.uint32)
        low, mask = self._bits[: values.size], self._mask[: values.size]
        np.isnan(values, out=mask)
        np.right_shift(bits, np.uint32(16), out=low)
        np.bitwise_and(low, np.uint32(1), out=low)
        np.add(low, np.uint32(0x7FFF), out=low)
        np.add(low, bits, out=low)
        np.right_shift(low, np.uint32(16), out=low)
        np.copyto(out, low, casting="unsafe")
        np.copyto(out, _NAN, where=mask)


def widen(bits: np.ndarray, out: np.ndarray) -> None:
    """out (float32) = the numbers of a float16 array, or of bfloat16 bits in uint16."""
    if bits.dtype == np.float16:
        np.copyto(out, bits)
    else:
        np.left_shift(bits, np.uint32(16), out=out.view(np.uint32), dtype=np.uint32)
