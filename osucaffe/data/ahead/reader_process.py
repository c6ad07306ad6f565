"""Owns what reader processes do: `main` is where the first of them begins, which forks the others.

See processes.py, which starts it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from ...errors import UserError, reason
from ...parent import end_with_parent
from .shared_ring import (
    BAD_INPUT,
    CRASHED,
    ENDED,
    LOGGED,
    LONGEST_TEXT,
    MADE,
    REPLY,
    SKIPPED,
    TASK,
    Ring,
)

_FEWER = "take fewer --readers (up to 4 are threads)"

Tell = Callable[..., None]


def main(module: str, *numbers: str) -> None:
    """Fork readers when the first task comes, and wait for their end: that of one before the tasks'
    end is told.

    module: what the source is defined in. numbers: of the file with a pickle of what they read
    with, and that of the memory of batches; of the pipes' ends for tasks and replies; and 1 where
    this is to die with the process that has started it.
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

    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        try:
            with open(given, "rb") as file:
                file.seek(0)
                fill, arrays, slots, readers = pickle.load(file)
            memory = Ring(arrays, slots, ring)
            gc.freeze()  # pages that a collection would copy stay shared
            own = os.getpid()
            for _ in range(readers):
                if not os.fork():
                    _begin(fill, memory, tasks, tell, own)
        except UserError as error:
            tell(0, ENDED, str(error))
        except OSError as error:
            tell(0, ENDED, f"cannot start processes that read data ({reason(error)}): {_FEWER}")
        else:
            _await_end(readers, tell)


def _await_end(readers: int, tell: Tell) -> None:
    """Wait for the end of all readers, and tell of the first one if it is not as it should be."""
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
    """Be a reader."""
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
    """Do tasks until there are no more."""
    log = logging.getLogger("osucaffe")
    log.handlers, log.propagate = [_Told(tell)], False
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


class _Told(logging.Handler):
    """Lets the process that is read for log what a reader would."""

    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(0, LOGGED, f"{record.levelno} {record.getMessage()}")
