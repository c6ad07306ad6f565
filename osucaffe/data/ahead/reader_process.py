"""The reader processes' side, and the memory and messages that they share with the parent.

`main` is the entry point of the first, which forks the others; processes.py starts it. The memory
is anonymous, and is freed with the last process. A message is short enough for an atomic write to
a pipe.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import mmap
import os
import pickle
import signal
import struct
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ...backends.tensor import Shape
from ...errors import UserError, reason
from ...parent import end_with_parent
from .pipeline import Arrays, Buffer

_FEWER = "take fewer --readers (up to 4 are threads)"
Tell = Callable[..., None]

TASK = struct.Struct("<IIIIIxxxxq")
"""Its number, its turn, a slot, its first record there and the one after its last, and the
position of the first in the stream."""
REPLY = struct.Struct("<IHH")
"""The number of a task, the kind of reply, and the length of the text that follows."""
MADE, BAD_INPUT, CRASHED, SKIPPED, LOGGED, ENDED = range(6)
LONGEST_TEXT = 4096 - REPLY.size
"""Bytes of a text: as much as a pipe takes atomically with several writers."""


class Ring:
    """The memory of `slots` batches, each of these arrays (shape, dtype).

    Every array is page-aligned, so that a GPU can pin it. file: of a ring that another process
    has created. UserError if the system has no shared memory left.
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
        """Tasks of another turn are obsolete."""
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


def main(module: str, *numbers: str) -> None:
    """Fork readers when the first task comes, and wait for their end; one that ends early is
    reported.

    module: the one that defines the source. numbers: the file descriptors of the pickled source
    and of the batches' memory; of the pipes' ends for tasks and replies; and 1 if
    this must die with the process that has started it.
    """
    given, ring, tasks, replies, die = map(int, numbers)
    if die:
        end_with_parent(os.getppid())
    importlib.import_module(module)
    if not os.read(tasks, TASK.size):
        return

    def tell(number: int, kind: int, text: str = "") -> None:
        # The end of a text says more: of a traceback.
        content = text.encode(errors="replace")[-LONGEST_TEXT:]
        os.write(replies, REPLY.pack(number, kind, len(content)) + content)

    with contextlib.suppress(BrokenPipeError):  # the parent has gone
        try:
            with open(given, "rb") as file:
                file.seek(0)
                fill, arrays, slots, readers = pickle.load(file)
            memory = Ring(arrays, slots, ring)
            gc.freeze()  # pages that a collection would copy stay shared
            process = os.getpid()
            for _ in range(readers):
                if not os.fork():
                    _begin(fill, memory, tasks, tell, process)
        except UserError as error:
            tell(0, ENDED, str(error))
        except OSError as error:
            tell(0, ENDED, f"cannot start processes that read data ({reason(error)}): {_FEWER}")
        else:
            _await_end(readers, tell)


def _await_end(readers: int, tell: Tell) -> None:
    """Wait for the end of all readers, and report the first abnormal one."""
    _, status = os.wait()
    if code := os.waitstatus_to_exitcode(status):
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        tell(
            0,
            ENDED,
            f"a process that reads data {how}. If nobody ended it, the machine may lack memory: "
            + _FEWER,
        )
    for _ in range(1, readers):
        os.wait()


def _begin(fill: Any, ring: Ring, tasks: int, tell: Tell, parent: int) -> NoReturn:
    """Run a reader."""
    code = 1
    try:
        end_with_parent(parent)
        _read(fill, ring, tasks, tell)
        code = 0
    except BrokenPipeError:
        code = 0
    finally:
        os._exit(code)


def _read(fill: Any, ring: Ring, tasks: int, tell: Tell) -> None:
    """Process tasks until there are no more."""
    log = logging.getLogger("osucaffe")
    log.handlers, log.propagate = [_ForwardingHandler(tell)], False
    if bad := getattr(fill.__self__, "bad", None):
        bad.tell = lambda record, text: tell(record, SKIPPED, text)
    slots = [[buffer.array for buffer in buffers] for buffers in ring.slots]
    while task := os.read(tasks, TASK.size):
        number, turn, slot, start, stop, position = TASK.unpack(task)
        kind, text = MADE, ""
        if turn == ring.turn:
            try:
                fill(position, [array[start:stop] for array in slots[slot]])
            except UserError as error:
                kind, text = BAD_INPUT, str(error)
            except Exception:
                kind, text = CRASHED, f"a process that reads data failed:\n{traceback.format_exc()}"
        tell(number, kind, text)


class _ForwardingHandler(logging.Handler):
    """Forwards log records to the parent process."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(0, LOGGED, f"{record.levelno} {record.getMessage()}")
