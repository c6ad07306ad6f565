"""The cache folder: kernels compiled and candidates chosen on this machine.

What is loaded from there runs with this user's rights: so only what this user or root has written,
and nobody else can change.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import shutil
import stat
import tempfile
from pathlib import Path

from ....errors import reason

_log = logging.getLogger("osucaffe")


def cache_folder() -> Path:
    """Where to write: $OSUCAFFE_CACHE, or osucaffe in the user's cache folder. In one that other
    users can write to, or that is another's, a folder of this user's. Where nothing can be written,
    as on a compute node whose home is read-only, a folder that is deleted with this process."""
    return _writable(_chosen())


def cached(name: str) -> Path | None:
    """The file of this name in that folder, else in the one that several users share, if it is
    there and only this user or root can have made or replaced it."""
    for folder in dict.fromkeys((cache_folder(), _chosen())):
        path = folder / name
        with contextlib.suppress(OSError):
            status = path.lstat()
            safe = stat.S_ISREG(status.st_mode) and _is_safe(status) and _is_safe(folder.stat())
            if safe and os.access(path, os.R_OK):
                return path
    return None


def _chosen() -> Path:
    own = os.environ.get("OSUCAFFE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "osucaffe"


@functools.cache
def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(0o755, parents=True, exist_ok=True)
        if not _is_own(folder):
            folder /= f"user-{os.geteuid()}"
            folder.mkdir(0o755, exist_ok=True)
            if not _is_own(folder):
                raise PermissionError(0, "it is not this user's alone")
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        _log.warning(
            "%s: nothing can be kept there (%s): kernels are compiled again in each run. Set "
            "OSUCAFFE_CACHE to a folder of yours",
            *(folder, reason(error)),
        )
        return _passing()


def _is_own(folder: Path) -> bool:
    """Whether a folder is this user's, and nobody else can write to it."""
    status = folder.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _is_safe(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's or root's, and nobody else can change it. (In one
    with the sticky bit, others can add files, and change none.)"""
    closed = status.st_mode & stat.S_ISVTX or not status.st_mode & 0o022
    return status.st_uid in (os.geteuid(), 0) and bool(closed)


@functools.cache
def _passing() -> Path:
    """A folder that is deleted with this process."""
    folder = tempfile.mkdtemp(prefix="osucaffe-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def keep(path: Path, content: bytes) -> None:
    """Write a file of that folder at once: others may read and write it at the same time. All
    users may read it, as root may have written it for them.

    Raises OSError where that cannot be.
    """
    file = tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False)  # noqa: SIM115
    try:
        with file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)
        os.replace(file.name, path)
    except BaseException:
        os.unlink(file.name)
        raise


def keep_somewhere(path: Path, content: bytes) -> Path:
    """Write a file of that folder, or, on a full disk, one that is deleted with this process.

    Returns where it lies.
    """
    try:
        keep(path, content)
    except OSError:
        path = _passing() / path.name
        keep(path, content)
    return path
