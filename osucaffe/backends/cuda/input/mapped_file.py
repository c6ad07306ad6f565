"""Copies from files to the GPU that no core of the host makes: straight from the page cache.

The file is mapped, and what is read of it is registered with CUDA, piece by piece as it is first
used: from then on the copy engine fetches records from there. What is registered stays in memory,
so only a file that leaves enough of it is read so; and a page that lies there is never missing,
even if the file is cut short (its reader checks that beforehand and afterwards).
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
import weakref
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ...uploads import available_memory
from ..gpu import Gpu
from .upload import BatchMemory

PIECE = 1 << 26
"""Bytes that are registered at once: 2 to 3 ms."""
_READ_ONLY, _MAPPED = 8, 2
_log = logging.getLogger("osucaffe")
_SHARE = 0.5
"""Of the memory that programs can still have, what files may keep at most."""


class MappedFile(BatchMemory):
    """Copies records of a file into a GPU's memory. Several threads may do so.

    RuntimeError (CUDA's, or this one) where the system does not let the file be registered, or
    there is too little memory to keep it.
    """

    def __init__(self, backend: Gpu, file: BinaryIO) -> None:
        super().__init__(backend, backend.cupy.cuda.Stream.ptds)  # of each thread
        self._file = file.fileno()
        self._size = os.fstat(self._file).st_size
        if self._size > _SHARE * available_memory():
            raise RuntimeError("the file is too large to be kept in memory")
        self._pages = np.frombuffer(mmap.mmap(self._file, 0, access=mmap.ACCESS_READ), np.uint8)
        self._start = self._pages.ctypes.data
        self._registered: dict[int, int] = {}
        """Pieces by their numbers: their addresses."""
        self._lock = threading.Lock()
        self._register(0)
        release = weakref.finalize(
            self, _release, self._runtime, self._registered, backend.device, self._pages
        )
        release.atexit = False  # the end of the process does it

    def copy(self, begins: np.ndarray, batch: Any) -> bool:
        """Copy the records that begin at these bytes of the file to a batch, (N, ...) of uint8.

        False if the system does not let a part of the file be registered.
        """
        self._backend.device.use()  # each thread has a current device of its own
        nbytes = batch.nbytes // len(batch)
        if nbytes > PIECE:
            return False
        try:
            for piece in np.unique([begins // PIECE, (begins + nbytes - 1) // PIECE]).tolist():
                self._register(piece)
        except self._runtime.CUDARuntimeError:
            return False
        kind, target = self._runtime.memcpyHostToDevice, int(batch.data.ptr)
        for run in runs(begins, nbytes):
            self._runtime.memcpy2DAsync(
                target + run.at, nbytes, self._start + run.begin, run.pitch, run.width, run.rows,
                kind, self._stream.ptr,
            )  # fmt: skip
        self._stream.synchronize()
        return True

    def _register(self, piece: int) -> None:
        begin = piece * PIECE
        if piece in self._registered:
            return
        # The disk begins with this piece and the next: registering takes page after page.
        os.posix_fadvise(self._file, begin, 2 * PIECE, os.POSIX_FADV_WILLNEED)
        with self._lock:
            if piece not in self._registered:
                size = min(PIECE, self._size - begin)
                address = self._start + begin
                self._runtime.hostRegister(address, size, _READ_ONLY | _MAPPED)
                self._registered[piece] = address


def map_file(backend: Gpu, file: BinaryIO) -> MappedFile | None:
    """What copies a file's records; None, with a reason in the log, where the host must do it."""
    try:
        return MappedFile(backend, file)
    except RuntimeError as error:
        _log.debug("Records of %s are copied by the host: %s", file.name, error)
        return None


class Run(NamedTuple):
    """Rows at equal distances: bytes from the start of the batch and of the file, from one row to
    the next, and of a row; how many there are."""

    at: int
    begin: int
    pitch: int
    width: int
    rows: int


def runs(begins: np.ndarray, nbytes: int) -> list[Run]:
    """Records of a file as few copies, none of which goes over the end of a piece: a record that
    does is two."""
    found: list[Run] = []
    starts = begins.tolist()
    at, count = 0, len(starts)
    while at < count:
        first = starts[at]
        piece = first // PIECE
        left = (piece + 1) * PIECE - first
        if left < nbytes:
            found += [
                Run(at * nbytes, first, nbytes, left, 1),
                Run(at * nbytes + left, first + left, nbytes, nbytes - left, 1),
            ]
            at += 1
            continue
        end = at + 1
        pitch = max(starts[end] - first, nbytes) if end < count else nbytes
        last = (piece + 1) * PIECE - nbytes
        while end < count and starts[end] == first + (end - at) * pitch and starts[end] <= last:
            end += 1
        found.append(Run(at * nbytes, first, pitch, nbytes, end - at))
        at = end
    return found


def _release(runtime: Any, registered: dict[int, int], device: Any, pages: np.ndarray) -> None:
    device.use()
    for address in registered.values():
        runtime.hostUnregister(address)
