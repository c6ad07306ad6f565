"""Owns memory for batches that several processes share: no name, no file, gone with the last one.

What reader processes and the process that they read for have in common: the layout of that memory
and of the messages about it, which are so short that a pipe takes each whole.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct

import numpy as np

from ...backends.tensor import Shape
from ...errors import UserError
from .pipeline import Arrays, Buffer

TASK = struct.Struct("<IIIIIxxxxq")
"""Its number, the turn that it belongs to, a slot, its first record there and the one behind its
last, and the position of the first in the stream."""
REPLY = struct.Struct("<IHH")
"""The number of a task, what there is to say of it, and how many bytes of text follow."""
MADE, BAD_INPUT, CRASHED, SKIPPED, LOGGED, ENDED = range(6)
LONGEST_TEXT = 4096 - REPLY.size
"""Bytes of a text: as much as a pipe takes whole, whoever else writes to it."""


class Ring:
    """The memory of so many batches, each of these arrays (shape, dtype).

    Every array begins with a page, so that a GPU can pin it. file: of a ring that another process
    has made. UserError where the system has no such memory left.
    """

    def __init__(self, arrays: Arrays, slots: int, file: int | None = None) -> None:
        sizes = [int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in arrays]
        offsets, end = [], mmap.PAGESIZE
        for size in sizes * slots:
            offsets.append(end)
            end += -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.file = _make_file(end) if file is None else file
        memory = mmap.mmap(self.file, end)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._turn = np.frombuffer(memory, np.uint32, 1)
        views = [
            _view(memory, offset, shape, dtype)
            for offset, (shape, dtype) in zip(offsets, list(arrays) * slots, strict=True)
        ]
        self.slots = [views[at : at + len(arrays)] for at in range(0, len(views), len(arrays))]

    @property
    def turn(self) -> int:
        """Tasks of another turn are not wanted any more."""
        return int(self._turn[0])

    @turn.setter
    def turn(self, turn: int) -> None:
        self._turn[0] = turn & 0xFFFFFFFF


def _make_file(nbytes: int) -> int:
    file = os.memfd_create("osucaffe-batches")
    try:
        # All of it now: to find later that there is none would end a process (SIGBUS).
        os.posix_fallocate(file, 0, nbytes)
    except OSError as error:
        os.close(file)
        raise UserError(
            f"no {nbytes:,} bytes of shared memory for batches that are read ahead "
            f"({error.strerror}): take fewer --readers (up to 4 need none), or lower "
            "data_param.prefetch or batch_size"
        ) from None
    return file


def _view(memory: mmap.mmap, offset: int, shape: Shape, dtype: str) -> Buffer:
    flat = np.frombuffer(memory, dtype, int(np.prod(shape)), offset)
    return Buffer(flat.reshape(shape), flat, flat.ctypes.data)
