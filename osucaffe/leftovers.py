"""Owns temporary files beside those that they become: their names, and that those of processes
that were killed go away.

A process holds a lock on what it writes (flock), which ends with it; and the name tells its host,
because not every file system knows the locks of other hosts.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger("osucaffe")


@contextlib.contextmanager
def temporary_beside(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """An empty file, or folder, in the folder of `path` and with its suffix; what is left of it at
    the end is removed. OSError where it cannot be made."""
    suffix = "" if folder else path.suffix
    stem = path.name.removesuffix(suffix)
    temporary = path.with_name(f".{stem}.{platform.node()}.{os.getpid()}.tmp{suffix}")
    descriptor = None
    try:
        _remove(temporary)  # an earlier process had the number of this one
        if folder:
            temporary.mkdir()
        descriptor = os.open(temporary, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
        _lock(descriptor)
        yield temporary
    finally:
        if descriptor is not None:
            os.close(descriptor)
        _remove(temporary)


def remove_leftovers(folder: Path) -> None:
    """Remove what processes of this host that were killed have left in a folder."""
    with contextlib.suppress(OSError):
        for path in [each for each in folder.iterdir() if _is_leftover(each)]:
            logger.info("Removing %s, left behind by a run that was killed", path)
            _remove(path)


def _is_leftover(path: Path) -> bool:
    """Whether it is a temporary of this host, whose process has ended, and that none has locked."""
    form = rf"\..+\.{re.escape(platform.node())}\.(\d+)\.tmp(\.[^.]*)?"
    name = re.fullmatch(form, path.name, re.DOTALL)
    if not name or _runs(int(name[1])):
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return _lock(descriptor)
    finally:
        os.close(descriptor)


def _runs(process: int) -> bool:
    """Whether a process of this number runs here. (In another container it may be unknown here.)"""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _lock(descriptor: int) -> bool:
    """Lock what it stands for, until it is closed. Whether that was possible."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
