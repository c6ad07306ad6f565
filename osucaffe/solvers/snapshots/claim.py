"""The lock that lets one training at a time write snapshots with a prefix."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

from ...errors import UserError
from ...files import open_file
from ...messages import printable

_PATIENCE = 5.0
"""Seconds that a run which was just killed gets to end."""
_EVERY = 0.05
"""Seconds between two tries."""


@contextlib.contextmanager
def claim(prefix: str, file: str) -> Iterator[None]:
    """Keep a snapshot prefix to this process, for one of a job's ranks.

    By a lock on a file beside the snapshots, which the kernel takes back however a process ends.
    Where there are no locks, or the folder cannot be written to, nothing is claimed. file: the
    solver's, for messages. UserError if another process has the prefix, naming it.
    """
    path = Path(prefix)
    path = path.with_name(f".{path.name}.lock")
    end = time.monotonic() + _PATIENCE
    descriptor = None
    with contextlib.suppress(OSError):
        while (descriptor := _lock(path)) is None:
            if time.monotonic() > end:
                raise UserError(
                    f"{file}: another training writes snapshots with snapshot_prefix {prefix!r}"
                    f"{_holder(path)}: let it end, or give this one another snapshot_prefix"
                )
            time.sleep(_EVERY)
    try:
        yield
    finally:
        if descriptor is not None:
            with contextlib.suppress(OSError):  # it is another user's, from a run that was killed
                path.unlink()  # first: who waits for its lock finds that it is gone
            os.close(descriptor)


def _lock(path: Path) -> int | None:
    """The descriptor of the locked file; None where another process has locked it. OSError."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except PermissionError:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                _sign(descriptor)
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # who had it has removed it meanwhile


def _sign(descriptor: int) -> None:
    """Write whose it is, for messages, unless it is another user's, or also has another name."""
    stat = os.fstat(descriptor)
    if stat.st_nlink == 1 and stat.st_uid == os.geteuid():
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError), open_file(path) as file:
        if text := printable(file.read(100).decode(errors="replace")):
            return f" ({text})"
    return ""
