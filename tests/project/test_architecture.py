"""Holds the package to docs/architecture.md: imports go up its table, files say what they own."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from osucaffe import plugins
from osucaffe.layer import layer_types

from .entry_points import files

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "osucaffe"
MAX_FILES = 18
"""In a folder."""
PARTS = ("apps", "forks", "rpc", "study")
"""The folders that the core does without: what they have is found by name (`plugins.py`)."""
FORKS = sorted(path.parent.name for path in (PACKAGE / "forks").glob("*/__init__.py"))
"""The families of forks of Caffe."""

MAX_CODE = {"core": 37_200, "all": 53_500}
"""Lines of Python but blank ones, comments and docstrings: to be lowered as it gets less. What is
not in the core: other parts, and the interfaces and formats of other programs."""
NOT_CORE = (*PARTS, "pycaffe", "onnx")

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


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> list[str]:
    """The modules of this package that a file imports, wherever in the file, by name too, and for a
    type checker only."""
    package = list(path.relative_to(ROOT).parts[:-1])
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            # What is imported from a package may be a module of it.
            found += [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0]
            found += [str(first.value)] if isinstance(first, ast.Constant) else []
    return [name for name in found if name.startswith("osucaffe.")]


def graph(paths: Sequence[Path]) -> dict[str, set[str]]:
    """Which modules each module imports."""
    names = {}
    for path in paths:
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if path.stem == "__init__" else parts)] = path
    found = {}
    for name, path in names.items():
        wanted = imports(path)
        known = {each if each in names else each.rpartition(".")[0] for each in wanted}
        found[name] = known & set(names) - {name}
    return found


def circles(imported: dict[str, set[str]]) -> list[str]:
    """A path for each module from which imports lead back to it."""
    wrong = []
    for start in imported:
        paths = {start: start}
        todo = [start]
        while todo:
            here = todo.pop()
            for module in sorted(imported[here]):
                if module == start:
                    wrong.append(f"{paths[here]} -> {start}")
                elif module not in paths:
                    paths[module] = f"{paths[here]} -> {module}"
                    todo.append(module)
    return wrong


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
            if other in table and other not in allowed(part, table):
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert not wrong


@pytest.mark.parametrize("folder", ["runtime", "libraries"])
def test_they_know_nothing_of_nets(folder: str) -> None:
    """What any program for GPUs needs; of nets, how tensors lie in memory."""
    cuda = "osucaffe.backends.cuda."
    fine = tuple(f"{cuda}{name}" for name in ("runtime.", "libraries.", "layout."))
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sources(f"osucaffe/backends/cuda/{folder}")
        for module in imports(path)
        if module.startswith(cuda) and not module.startswith(fine)
    ]
    assert not wrong


def test_the_package_imports_its_own_modules_relatively() -> None:
    absolute = re.compile(r"^ *(from|import) osucaffe\b", re.MULTILINE)
    assert not [path for path in sources("osucaffe") if absolute.search(path.read_text())]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert not circles(graph(sources("osucaffe")))


def test_a_circle_would_be_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b -> c -> b", "c -> b -> c"]


def test_a_wrong_import_would_be_found() -> None:
    table = read_table()
    assert "net" not in allowed("layers", table)
    assert "proto" not in allowed("backends", table)
    assert {"backends", "errors"} <= allowed("layers", table)


@pytest.mark.parametrize("folder", ["osucaffe", "tests", "tools", "benchmarks"])
def test_each_file_says_what_it_owns(folder: str) -> None:
    wrong = []
    for path in sources(folder):
        if not ast.get_docstring(parsed(path)):
            wrong.append(f"{path.relative_to(ROOT)} has no docstring")
    assert not wrong


def code_lines(path: Path) -> int:
    lines = [line.strip() for line in path.read_text().splitlines()]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(parsed(path)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            for number in range(node.body[0].lineno - 1, node.body[0].end_lineno or 0):
                lines[number] = ""
    return sum(1 for line in lines if line and not line.startswith("#"))


def test_there_is_no_more_code_than_before() -> None:
    counts = {"core": 0, "all": 0}
    for path in sources("osucaffe"):
        lines = code_lines(path)
        counts["all"] += lines
        counts["core"] += lines * (path.relative_to(PACKAGE).parts[0] not in NOT_CORE)
    assert {name: max(lines, MAX_CODE[name]) for name, lines in counts.items()} == MAX_CODE


@pytest.mark.parametrize("top", ["osucaffe", "tests", "benchmarks"])
def test_no_folder_has_too_many_files(top: str) -> None:
    data = {"__pycache__", "fixtures", "regressions", "results"}
    counts: dict[Path, int] = {}
    for path in (ROOT / top).rglob("*"):
        if path.is_file() and data.isdisjoint(path.parts):
            counts[path.parent] = counts.get(path.parent, 0) + 1
    assert not {folder: count for folder, count in counts.items() if count > MAX_FILES}


def importing(part: str) -> list[str]:
    """The files outside a part, "forks" or "forks.ssd", that import something of it."""
    folder = PACKAGE / part.replace(".", "/")
    others = [path for path in sources("osucaffe") if folder not in path.parents]
    inside = f"osucaffe.{part}."
    return [str(p) for p in others if any(f"{n}.".startswith(inside) for n in imports(p))]


def test_benchmarks_import_no_tests() -> None:
    pattern = re.compile(r"^ *(from|import) tests\b", re.MULTILINE)
    assert not [path for path in sources("benchmarks") if pattern.search(path.read_text())]


@pytest.mark.parametrize("part", PARTS)
def test_the_core_imports_no_other_part(part: str) -> None:
    assert not importing(part)


def test_layer_types_are_listed_where_they_are_registered() -> None:
    for path, text in files().items():
        assert path.read_text() == text, "run python -m tests.project.entry_points"


def test_every_layer_type_is_listed() -> None:
    """However it is registered: else it is found only once another of its module was."""
    ours = {name for name, kind in layer_types().items() if kind.__module__.startswith("osucaffe.")}
    assert ours <= {*plugins.names(plugins.LAYERS)}


@pytest.mark.parametrize("fork", FORKS)
def test_nothing_else_imports_the_layers_of_a_fork(fork: str) -> None:
    assert not importing(f"forks.{fork}")


@pytest.mark.parametrize("fork", FORKS)
def test_the_page_of_a_fork_names_its_layers(fork: str) -> None:
    folder = PACKAGE / "forks" / fork
    page = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    types = set(re.findall(r'@register\("(\w+)"\)', text))
    assert types | {"From", "Used"} <= set(re.findall(r"\w+", page))


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
