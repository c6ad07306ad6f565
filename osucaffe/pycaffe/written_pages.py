"""Owns which pages of a net's weights may have been written since a moment, as the kernel knows it.

The memory becomes a private mapping of a file with the same values: who writes to a page, by
whatever means, gets a copy of that page, and /proc/self/pagemap tells which pages are copies. So
weights that a script holds, and may write to at any time, need not be compared with what they were.
"""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

Range = tuple[int, int]
"""The address at which it begins, and that at which it ends."""

EVERYTHING: Range = (0, 1 << 64)
_PRESENT_OR_SWAPPED, _OF_A_FILE = np.uint64(3 << 62), np.uint64(1 << 61)
_ENTRY = 8
_watched: set[Range] = set()

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_FIXED = 0x10


class WrittenPages:
    """Those of a range of memory that belongs to this process alone, from now on.

    Nobody may write to the range meanwhile, or have registered its pages with a device. OSError
    where the system does not tell, or somebody watches a part of the range already.
    """

    def __init__(self, begin: int, end: int) -> None:
        self._begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        self._end = end // mmap.PAGESIZE * mmap.PAGESIZE
        if any(start < self._end and self._begin < stop for start, stop in _watched):
            raise OSError("a part of it is watched already")
        self._map()
        first = ctypes.c_uint8.from_address(self._begin)
        first.value = first.value  # to see whether that is noticed
        if self.ranges()[1:-1] != [(self._begin, self._begin + mmap.PAGESIZE)]:
            raise OSError("the system does not tell what was written")
        _watched.add((self._begin, self._end))

    def _map(self) -> None:
        size = self._end - self._begin
        if size <= 0:
            raise OSError("it has no whole page")
        file = os.memfd_create("osucaffe-weights")
        try:
            values = memoryview((ctypes.c_uint8 * size).from_address(self._begin))
            while (done := os.lseek(file, 0, os.SEEK_CUR)) < size:
                os.write(file, values[done:])
            access = mmap.PROT_READ | mmap.PROT_WRITE
            flags = mmap.MAP_PRIVATE | _FIXED
            if _LIBC.mmap(self._begin, size, access, flags, file, 0) != self._begin:
                raise OSError(ctypes.get_errno(), "cannot map a file")
        finally:
            os.close(file)

    def ranges(self) -> list[Range]:
        """What may have been written, in order; what is not watched is among it."""
        first, size = self._begin // mmap.PAGESIZE, (self._end - self._begin) // mmap.PAGESIZE
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(first * _ENTRY)
            entries = np.frombuffer(file.read(size * _ENTRY), np.uint64)
        if len(entries) < size:
            return [EVERYTHING]
        copied = (entries & _PRESENT_OR_SWAPPED != 0) & (entries & _OF_A_FILE == 0)
        bounds = np.flatnonzero(np.diff(copied, prepend=False, append=False))
        bounds_of = (self._begin + bounds * mmap.PAGESIZE).tolist()
        written = zip(bounds_of[::2], bounds_of[1::2], strict=True)
        return [(0, self._begin), *written, (self._end, EVERYTHING[1])]

    def close(self) -> None:
        """Let others watch the range: the values stay where they are."""
        _watched.discard((self._begin, self._end))
