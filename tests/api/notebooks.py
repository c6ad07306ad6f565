"""Runs notebooks as they are, in this process; `python -m tests.api.notebooks` writes what their
cells show into them."""

from __future__ import annotations

import ast
import json
import os
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"


def run(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Run its cells in the current folder. Returns its variables, and what each cell shows: the
    value of its last line, or None."""
    space: dict[str, Any] = {}
    shown = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), space)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), path.name, "eval"), space)
        shown.append(value)
    return space, shown


def output(value: Any) -> list[dict[str, Any]]:
    """What a notebook stores of it."""
    if value is None:
        return []
    data = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_().splitlines(keepends=True)
    if hasattr(value, "_repr_png_"):
        import base64

        data = {"image/png": base64.b64encode(value._repr_png_()).decode(), **data}
    return [{"output_type": "execute_result", "data": data, "execution_count": 1, "metadata": {}}]


def in_folder(folder: Path) -> None:
    """Let a notebook find what it names, and write elsewhere than in the repository."""
    for name in ("models", "tests"):
        (folder / name).symlink_to(ROOT / name)
    os.chdir(folder)


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as made:
            in_folder(Path(made))
            _, shown = run(path)
        document = json.loads(path.read_text())
        code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
        for cell, value in zip(code, shown, strict=True):
            cell["outputs"] = output(value)
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
