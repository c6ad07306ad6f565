"""Owns registered memory: buffers that the other processes of this host map, and so fill by a copy
of their own, at the speed of memory, where the system's own copy must find each page first."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Place(NamedTuple):
    """Where so many bytes are wanted: their address in the process that wants them; and if they are
    registered, the file that holds them there, and where in it (else file is -1)."""

    address: int
    nbytes: int
    file: int
    offset: int


class Registered:
    """The buffers of this process."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, int]] = []  # first address, behind the last, file

    def allocate(self, nbytes: int) -> np.ndarray:
        """So many bytes, all zero."""
        file = os.memfd_create("osucaffe")
        os.ftruncate(file, max(nbytes, 1))
        memory = np.frombuffer(mmap.mmap(file, max(nbytes, 1)), np.uint8)
        start = memory.ctypes.data
        self._blocks.append((start, start + len(memory), file))
        return memory[:nbytes]

    def places(self, views: Sequence[memoryview]) -> list[Place]:
        """Where they lie."""
        found = []
        for view in views:
            at = np.frombuffer(view, np.uint8).ctypes.data
            for start, stop, file in self._blocks:
                if start <= at < stop:
                    found.append(Place(at, len(view), file, at - start))
                    break
            else:
                found.append(Place(at, len(view), -1, 0))
        return found

    def close(self) -> None:
        """None is mapped any more from now on; arrays stay."""
        for _, _, file in self._blocks:
            os.close(file)
        self._blocks = []


class Mapped:
    """The registered buffers of another process of this host, as far as they were needed."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._files: dict[int, np.ndarray] = {}

    def write(self, sources: Sequence[memoryview], places: Sequence[Place]) -> None:
        """Copy these bytes to those places, all registered. OSError."""
        source, left = np.empty(0, np.uint8), iter(sources)
        for place in places:
            done = 0
            while done < place.nbytes:
                if not len(source):
                    source = np.frombuffer(next(left), np.uint8)
                count = min(len(source), place.nbytes - done)
                start = place.offset + done
                # NumPy lets other threads run meanwhile.
                np.copyto(self._file(place.file)[start : start + count], source[:count])
                source, done = source[count:], done + count

    def _file(self, file: int) -> np.ndarray:
        if file not in self._files:
            opened = os.open(f"/proc/{self._process}/fd/{file}", os.O_RDWR)
            try:
                memory = mmap.mmap(opened, os.fstat(opened).st_size)
            finally:
                os.close(opened)
            self._files[file] = np.frombuffer(memory, np.uint8)
        return self._files[file]
