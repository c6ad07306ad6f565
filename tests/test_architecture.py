"""Holds the package to docs/architecture.md: imports go up its table, files say what they own."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "osucaffe"
MOST_LINES = 400
# The registry finds the layers by importing the package whose modules register themselves.
EXCEPTIONS = {("layer", "layers")}

Table = dict[str, tuple[int, str]]
"""For each part of the package ("proto", "net" ...) its row, and what the row says it imports."""


def sources(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if not path.stem.endswith("_pb2") and path.read_text().strip()]


def part_of(module: str) -> str:
    """The part that a module belongs to: "osucaffe.proto.text" is of "proto"."""
    return module.split(".")[1] if "." in module else ""


def read_table() -> Table:
    table: Table = {}
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(?:osucaffe/)?(\w+)(?:\.py|/)`", cells[0])
        if line.startswith("| `") and len(cells) == 3:
            row = len({row for row, _ in table.values()})
            table |= dict.fromkeys(names, (row, cells[2]))
    return table


def allowed(part: str, table: Table) -> set[str]:
    """The parts that a part may import: those named, those that they may, its row, errors."""
    row, words = table[part]
    above = {name for name, (other, _) in table.items() if other < row}
    same = {name for name, (other, _) in table.items() if other == row}
    if words in ("the above", "all"):
        return above | same
    named = [word.strip() for word in words.split(",") if word.strip() in table]
    assert set(named) <= above, f"{part} names a part that is not above it"
    return same.union(named, *(allowed(name, table) for name in named))


def imports(path: Path) -> list[str]:
    """The modules of this package that a file imports, wherever in the file."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            if module == "osucaffe":
                found += [f"osucaffe.{alias.name}" for alias in node.names]
            else:
                found.append(module)
    return [name for name in found if name.startswith("osucaffe.")]


def modules() -> list[tuple[Path, str]]:
    """The package's files, each with its part."""
    found = []
    for path in sources("osucaffe"):
        part = part_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if part not in ("__init__", "__main__"):
            found.append((path, part))
    return found


def test_the_table_names_every_part() -> None:
    assert {part for _, part in modules()} <= set(read_table())


def test_imports_only_go_up() -> None:
    table = read_table()
    wrong = []
    for path, part in modules():
        for module in imports(path):
            other = part_of(module)
            known = other in table and other not in allowed(part, table)
            if known and (part, other) not in EXCEPTIONS:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


def test_a_wrong_import_would_be_found() -> None:
    table = read_table()
    assert "net" not in allowed("layers", table)
    assert "proto" not in allowed("backends", table)
    assert {"backends", "errors"} <= allowed("layers", table)


@pytest.mark.parametrize("folder", ["osucaffe", "tests", "tools", "benchmarks"])
def test_each_file_says_what_it_owns_and_is_short(folder: str) -> None:
    wrong = []
    for path in sources(folder):
        text = path.read_text()
        if not ast.get_docstring(ast.parse(text)):
            wrong.append(f"{path.relative_to(ROOT)} has no docstring")
        lines = text.count("\n")
        if lines > MOST_LINES:
            wrong.append(f"{path.relative_to(ROOT)} has {lines} lines")
    assert not wrong


def test_no_line_names_the_machine_that_it_was_written_on() -> None:
    pattern = re.compile("|".join(["/work" + "/", r"\.\./" + "shared", "/tmp" + "/venv"]))
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git clone")
    wrong = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_symlink() or not path.is_file():
            continue
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        wrong += [f"{name}:{n}: {line}" for n, line in enumerate(lines, 1) if pattern.search(line)]
    assert not wrong


@pytest.mark.parametrize("link", [("layers", "layers"), ("comm", "comm"), ("tools", "cli")])
def test_the_top_level_links_into_the_package(link: tuple[str, str]) -> None:
    name, folder = link
    assert (ROOT / name).is_symlink()
    assert (ROOT / name).resolve() == PACKAGE / folder
