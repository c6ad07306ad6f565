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


def run(path: Path) -> tuple[dict[str, Any], list[Any], list[list[dict[str, Any]]]]:
    """Run its cells in the current folder. Returns its variables, what each cell shows, the value
    of its last line or None, and this as a notebook stores it."""
    space: dict[str, Any] = {}
    shown, stored = [], []
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
        stored.append(output(value))  # now: what a net shows changes
    return space, shown, stored


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
            _, _, stored = run(path)
        document = json.loads(path.read_text())
        code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
        for cell, outputs in zip(code, stored, strict=True):
            cell["outputs"] = outputs
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
