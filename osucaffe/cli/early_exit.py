"""Early exits: a command fails if user code that it runs, such as a Python
layer, calls sys.exit or os._exit."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from .. import messages


class Ended(SystemExit):
    """The regular end of a command, with its exit code."""


@contextlib.contextmanager
def report_early_exit() -> Iterator[None]:
    """Leaving the body by sys.exit or os._exit prints a message and returns a non-zero exit code.
    (Jobs of several ranks do this themselves: see `MpiJob.together`.)"""
    process, leave = os.getpid(), os._exit

    def tell(status: int) -> NoReturn:
        if os.getpid() == process:  # not a process that was forked
            status = _tell("os._exit", status, traceback.extract_stack(limit=2)[0])
        leave(status)

    os._exit = tell
    try:
        yield
    except Ended:
        raise
    except SystemExit as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise SystemExit(_tell("sys.exit", error.code, frame)) from None
    finally:
        os._exit = leave


def _tell(call: str, code: object, frame: traceback.FrameSummary) -> int:
    """Print how the body was left. Returns the exit code."""
    text = f"left by {call}({code!r}) at {Path(frame.filename).name}:{frame.lineno}"
    with contextlib.suppress(OSError, ValueError):  # a closed stderr
        print(f"osucaffe: {messages.tidy(text)}, before its end", file=sys.stderr, flush=True)
    return code if isinstance(code, int) and code & 255 else 1
