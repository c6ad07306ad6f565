"""Owns the folder that keeps from run to run what was compiled and chosen for this machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """$OSUCAFFE_CACHE, or osucaffe in the user's cache folder."""
    own = os.environ.get("OSUCAFFE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "osucaffe"


def keep(path: Path, content: bytes) -> None:
    """Write a file of that folder at once: others may read and write it at the same time.

    Raises OSError where that cannot be.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
