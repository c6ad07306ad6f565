"""What `import caffe` finds: caffe.py in this folder, whose place pycaffe's interface takes.

It imports nothing of osucaffe: until a program does `import caffe`, it costs no time.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

FOLDER = __path__[0]
"""What on `sys.path` lets `import caffe` find osucaffe, if no Caffe is before it."""


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [FOLDER]) if name == "caffe" else None


class _LastFinder:
    """As if our folder were the last of `sys.path`, which stays as it is."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [*sys.path, FOLDER]) if name == "caffe" else None


def offer() -> None:
    """Let `import caffe` find osucaffe, unless another Caffe is on `sys.path`."""
    if _LastFinder not in sys.meta_path:
        sys.meta_path.insert(0, _LastFinder)


def lead() -> None:
    """Let `import caffe` find osucaffe, whatever is on `sys.path`: a script's own
    `sys.path.insert(0, "caffe/python")` leads to a Caffe that nobody has compiled."""
    sys.meta_path.insert(0, _Finder)
