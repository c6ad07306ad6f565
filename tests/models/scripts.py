"""Imports, for tests, the scripts of models and examples, which are in no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def load_script(path: Path) -> Any:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
