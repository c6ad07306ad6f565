"""The form of log lines: glog's, which Caffe's tools for logs read.

    I1121 09:22:33.123456  4711 solver.py:218] Iteration 100, lr = 0.01

That is severity, month and day, time, thread, file and line, message. Everything in the package
logs with the standard `logging` module to loggers under "osucaffe"; `start` decides where it goes.
"""

from __future__ import annotations

import getpass
import logging
import os
import platform
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

from .errors import UserError
from .files import open_new
from .messages import printable

command: Sequence[str] = ()
"""The words of the command line that runs, which the front has read: what the log begins with, what
ranks are started with, and what resumes a run."""
quiet = False
"""Whether standard error gets warnings and errors only; a file gets all."""

_SEVERITY = {
    logging.DEBUG: "I",
    logging.INFO: "I",
    logging.WARNING: "W",
    logging.ERROR: "E",
    logging.CRITICAL: "F",
}


_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def least_level(number: int | None = None) -> int:
    """The level from which lines are logged, by glog's numbers: 0 all, 1 warnings, 2 errors.

    number: default, the environment variable GLOG_minloglevel, or else 0.
    """
    if number is None:
        text = os.environ.get("GLOG_minloglevel", "")  # noqa: SIM112 (glog's name)
        number = int(text) if re.fullmatch("[0-9]{1,9}", text) else 0
    return _LEVELS[min(max(number, 0), len(_LEVELS) - 1)]


class Formatter(logging.Formatter):
    """Formats a record as glog does."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback, if there is one, follows it."""
        moment = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        microseconds = int(record.created % 1 * 1e6)
        place = f"{record.filename}:{record.lineno}"
        # Caffe's own lines have tabs; an end of line would begin what looks like another record.
        message = printable(record.getMessage()).replace("\n", "\\n")
        line = (
            f"{_SEVERITY.get(record.levelno, 'I')}{moment}.{microseconds:06d} "
            f"{threading.get_native_id():5d} {place}] {message}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class StandardError(logging.Handler):
    """Writes to the standard error of the moment, or to what `write` is set to meanwhile."""

    write: Callable[[str], object] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            line = self.format(record)
            if self.write:
                self.write(line)
            else:
                print(line, file=sys.stderr, flush=True)
        except BrokenPipeError:
            pass
        except Exception:
            self.handleError(record)


class File(logging.FileHandler):
    """Writes to a new file for as long as it can be written: a full disk does not end a run."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=open_new)

    def handleError(self, record: logging.LogRecord) -> None:
        """Say once that the file is given up."""
        logger = logging.getLogger("osucaffe")
        logger.removeHandler(self)
        logger.warning("%s cannot be written any more: %s", self.baseFilename, sys.exc_info()[1])


def start(log_dir: str | None = None, program: str = "osucaffe") -> StandardError:
    """Send the package's log lines to standard error, and to a new file in log_dir if given.

    Returns the handler for standard error. A directory that cannot be written raises UserError.
    """
    logger = logging.getLogger("osucaffe")
    stop()
    logger.setLevel(least_level())
    logger.propagate = False
    standard_error = StandardError()
    standard_error.setFormatter(Formatter())
    standard_error.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.addHandler(standard_error)
    if log_dir:
        file = _new_file(Path(log_dir), program)
        file.setFormatter(Formatter())
        logger.addHandler(file)
    return standard_error


def quieten() -> None:
    """Let through warnings and errors only: of several ranks, one tells what all do."""
    logging.getLogger("osucaffe").setLevel(max(logging.WARNING, least_level()))


def stop() -> None:
    """Take back what `start` did."""
    logger = logging.getLogger("osucaffe")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


def _new_file(directory: Path, program: str) -> File:
    """Create the log file with glog's heading and name; PROGRAM.INFO links to the newest."""
    now = time.localtime()
    host = platform.node().split(".")[0] or "localhost"
    stamp = time.strftime("%Y%m%d-%H%M%S", now)
    name = f"{program}.{host}.{_user()}.log.INFO.{stamp}.{os.getpid()}"
    link = directory / f"{program}.INFO"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            file = File(directory / name)
        except FileExistsError:  # of this second, or another user's
            name += f".{os.urandom(8).hex()}"
            file = File(directory / name)
        assert file.stream
        file.stream.write(
            f"Log file created at: {time.strftime('%Y/%m/%d %H:%M:%S', now)}\n"
            f"Running on machine: {host}\n"
            f"Command: {printable(shlex.join(['osucaffe', *sys.argv[1:]]))}\n"
            "Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu threadid file:line] msg\n"
        )
        file.flush()
    except OSError as error:
        raise UserError(
            f"{directory}: cannot write the log there ({error.strerror}): "
            "give --log_dir a directory that you may write"
        ) from error
    try:
        link.unlink(missing_ok=True)
        link.symlink_to(name)
    except OSError:
        pass  # Some file systems have no links; the log itself is there.
    return file


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return str(os.getuid())
