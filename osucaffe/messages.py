"""Turns the exception that ends a command or a rank into one message."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from pathlib import Path

from .errors import UserError, reason

_LONGEST = 200
_TOO_LONG = re.compile(rf'"[^"\n]{{{_LONGEST},}}"|\S{{{_LONGEST},}}')
_NO_MEMORY = re.compile(
    r"can't start new thread|failed to map segment|[Cc]annot allocate memory|out of memory"
)


def explain(error: BaseException) -> str:
    """The one message for an error, whose parts that input may have made long are cut."""
    return tidy(_explain(error))


def debugging() -> bool:
    """Whether tracebacks of all errors are wanted."""
    return os.environ.get("OSUCAFFE_DEBUG", "0") not in ("", "0")


def _explain(error: BaseException) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if lacks_memory(error):
        return f"out of memory ({reason(error) or 'no more is given'}): lower the batch size"
    if isinstance(error, OSError):
        told = reason(error) or repr(error)
        return f"{error.filename}: {told}" if error.filename is not None else told
    if type(error).__module__.partition(".")[0] == "mpi4py":  # which only jobs import
        return f"another rank has ended or cannot be reached (MPI: {error})"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    told = str(error).strip().partition("\n")[0]
    return (
        f"{type(error).__name__}: {told}{where}. This is a bug in osucaffe: please report it, "
        "with the command, its files and what OSUCAFFE_DEBUG=1 shows"
    )


def lacks_memory(error: BaseException) -> bool:
    """Whether memory ran out, or what the system counts with it: threads, addresses."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError | ImportError | OSError) and bool(
        _NO_MEMORY.search(str(error))
    )


def is_users(error: BaseException) -> bool:
    """Whether an error was raised in a user's own code, a Python layer say: then its traceback is
    what helps."""
    if isinstance(error, (UserError, KeyboardInterrupt, OSError)) or lacks_memory(error):
        return False
    ours = (str(Path(__file__).parent), sys.prefix, sys.base_prefix, "<")
    # A library that was compiled from Cython names sources that are not here.
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith("<") or Path(frame.filename).exists()
    ]
    first = next((n for n, frame in enumerate(frames) if frame.filename.startswith(ours[0])), 0)
    return any(not frame.filename.startswith(ours) for frame in frames[first:])


def tidy(text: str) -> str:
    """Text for a terminal: words and quotations of more than 200 characters are cut, and what would
    steer the terminal is escaped."""
    return printable(_TOO_LONG.sub(_cut, text))


def _cut(found: re.Match[str]) -> str:
    return f"{found[0][:_LONGEST]}... ({len(found[0])} characters)"


def one_line(text: str) -> str:
    """The same in one line: what stands in it is no further line of a log or a table."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def printable(text: str) -> str:
    """The text with its control characters, but for ends of lines, as escapes such as \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text
    )
