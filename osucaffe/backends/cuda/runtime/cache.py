"""Owns the cache folder: kernels compiled and candidates chosen on this machine."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """$OSUCAFFE_CACHE, or osucaffe in the user's cache folder; where nothing can be written there,
    as on a compute node whose home is read-only, a folder that goes with this process."""
    own = os.environ.get("OSUCAFFE_CACHE")
    if own:
        return _writable(Path(own))
    return _writable(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "osucaffe")


@functools.cache
def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return _passing()


@functools.cache
def _passing() -> Path:
    """A folder that goes with this process."""
    folder = tempfile.mkdtemp(prefix="osucaffe-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def keep(path: Path, content: bytes) -> None:
    """Write a file of that folder at once: others may read and write it at the same time.

    Raises OSError where that cannot be.
    """
    file = tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False)  # noqa: SIM115
    try:
        with file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        os.unlink(file.name)
        raise


def keep_somewhere(path: Path, content: bytes) -> Path:
    """Write a file of that folder, or where its disk is full, one that goes with this process.

    Returns where it lies.
    """
    try:
        keep(path, content)
    except OSError:
        path = _passing() / path.name
        keep(path, content)
    return path
