"""Writes the layer types into the files of entry points: python -m tests.project.entry_points."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from osucaffe.layers.base import registered

PACKAGE = Path(__file__).parent.parent.parent / "osucaffe"
HEAD = "[osucaffe.layers]\n"
WITHOUT_LAYERS = ("cuda", "onnx")
"""Modules that may need libraries which are not there."""


def expected(folder: str) -> str:
    """The file of a folder: the layer types that its modules register, the rest as it is."""
    for path in (PACKAGE / folder).glob("*/*.py"):
        if path.stem not in WITHOUT_LAYERS:
            importlib.import_module(f"osucaffe.{folder}.{path.parent.name}.{path.stem}")
    lines = []
    for name, layer in registered.items():
        module, own = layer.__module__, layer.__name__
        if module.startswith(f"osucaffe.{folder}."):
            there = getattr(sys.modules[module], own, None) is layer
            lines.append(f"{name} = {module}{f':{own}' * there}\n")
    others = (PACKAGE / folder / "entry_points.txt").read_text().partition(HEAD)[0]
    return others + HEAD + "".join(sorted(lines))


def files() -> dict[Path, str]:
    """Each file, with what it should hold."""
    return {PACKAGE / each / "entry_points.txt": expected(each) for each in ("layers", "forks")}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
