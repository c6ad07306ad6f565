"""Writes the layer types into the files of entry points: python -m tests.project.entry_points."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "osucaffe"
REGISTERED = re.compile(r'^@register\("(\w+)"\)\n(?:@.*\n)*class (\w+)', re.MULTILINE)
FUNCTION = re.compile(r'^_function\((?:  #.*)?\s*"(\w+)"', re.MULTILINE)
HEAD = "[osucaffe.layers]\n"


def expected(folder: Path) -> str:
    """The file of a folder: its layer types as its modules register them, the rest as it is."""
    lines = []
    for path in folder.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        text = path.read_text()
        lines += [f"{a} = {module}:{b}\n" for a, b in REGISTERED.findall(text)]
        lines += [f"{name} = {module}\n" for name in FUNCTION.findall(text)]
    file = folder / "entry_points.txt"
    others = file.read_text().partition(HEAD)[0] if file.exists() else ""
    return others + HEAD + "".join(sorted(lines)) if lines else others


def files() -> dict[Path, str]:
    """Each file, with what it should hold."""
    folders = [path for path in PACKAGE.iterdir() if path.is_dir()]
    return {path / "entry_points.txt": text for path in folders if (text := expected(path))}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
