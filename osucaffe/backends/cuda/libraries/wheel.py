"""Finds NVIDIA's libraries: in their wheels, or where the system's loader looks."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path


def open_library(package: str, name: str) -> ctypes.CDLL:
    """A library, of the wheel that has this package if there is one. OSError, with what was said
    of the wheel's, if there is none."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    folders = spec.submodule_search_locations if spec else None
    names = [str(Path(folder) / "lib" / name) for folder in folders or ()]
    said: OSError | None = None
    for each in [*filter(lambda name: Path(name).exists(), names), name]:
        try:
            return ctypes.CDLL(each)
        except OSError as error:
            said = said or error
    assert said
    raise said
