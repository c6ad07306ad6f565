"""Holds the processes that the package starts to a list, and Python among them to flags that keep
the current folder off `sys.path`."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from osucaffe.cli.launch.start import _command
from osucaffe.data.ahead.pipeline import Pipeline
from osucaffe.data.ahead.processes import Processes
from osucaffe.proto import hdf5
from tests.project.test_architecture import PACKAGE, sources

STARTS = re.compile(
    r"(?:subprocess\.(?:Popen|run|call|check_\w+|get\w*output)"
    r"|os\.(?:exec\w+|spawn\w+|posix_spawnp?|system|popen|fork\w*|startfile)"
    r"|(?:multiprocessing|pty)\..*|.*\.(?:create_)?subprocess_\w+|.*\bProcessPoolExecutor|.*\.Spawn\w*"
    r"|ctypes\.util\.find_library)"
)
"""What starts a process (find_library runs ldconfig and compilers)."""
STARTED = {
    "api/run.py": [
        "subprocess.Popen: sys.executable '-P' '-m' 'osucaffe' name *map(str, arguments)"
    ],
    "backends/cpu/onednn/__init__.py": ["ctypes.util.find_library: 'dnnl'"],
    "backends/cuda/runtime/compile.py": [
        "subprocess.run: sys.executable '-I' '-S' nvrtc.__file__ library *options"
    ],
    "cli/launch/mps.py": ["subprocess.run: CONTROL", "subprocess.run: CONTROL '-d'"],
    "cli/launch/restarts.py": ["subprocess.Popen: command"],  # of start.py's _command
    "cli/machine/device_query.py": ["subprocess.run: 'nvidia-smi' 'topo' '-m'"],
    "study/local_runs.py": [
        "subprocess.run: sys.executable '-P' '-m' 'osucaffe' 'train' '--quiet'"
    ],
    "apps/photographs/fit.py": ["subprocess.Popen: sys.executable '-P' '-m' 'osucaffe' *words"],
    "apps/photographs/pretrained.py": [
        "subprocess.run: sys.executable '-P' '-m' 'pip' 'download' *options"
    ],
    "data/ahead/processes.py": [
        "subprocess.Popen: sys.executable '-P' '-c' _START json.dumps(path) *what"
    ],
    "data/ahead/reader_process.py": ["os.fork: "],
    "proto/hdf5.py": [
        "subprocess.Popen: sys.executable '-P' str(_PROGRAM) str(number) str(MAX_VALUES)"
    ],
    "pycaffe/draw.py": ["subprocess.run: 'dot' f'-T{ext}'"],
}
"""By file, sorted, what it starts processes with, and their command lines."""
PYTHON = {"cli/launch/start.py": "sys.executable '-P' '-m' 'osucaffe' *log.command *more"}
"""Command lines of Python that are passed on."""


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """What starts a process, and the first argument; of `from subprocess import ...`, too."""
    subscripted = {node.value for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    called = {node.func: node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from ((name, None) for name in names if STARTS.fullmatch(name))
        elif isinstance(node, ast.Attribute) and node not in subscripted:  # no annotation
            name = ast.unparse(node)
            if STARTS.fullmatch(name):
                arguments = called[node].args if node in called else []
                yield name, arguments[0] if arguments else None


def words(node: ast.expr | None, tree: ast.AST) -> str:
    """A command line; of a name, what the file sets it to if that is a list."""
    if isinstance(node, ast.Name):
        lists = {
            ast.unparse(other.targets[0]): other.value
            for other in ast.walk(tree)
            if isinstance(other, ast.Assign) and "sys.executable" in ast.unparse(other.value)
        }
        node = lists.get(node.id, node)
    if isinstance(node, ast.List):
        return " ".join(ast.unparse(word) for word in node.elts)
    return ast.unparse(node) if node else ""


def started(text: str) -> list[str]:
    tree = ast.parse(text)
    return [f"{name}: {words(argument, tree)}" for name, argument in calls(tree)]


def pythons(text: str) -> list[str]:
    """The command lines of Python in a text."""
    tree = ast.parse(text)
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple)]
    lines = [words(node, tree) for node in lists]
    return [line for line in lines if line.startswith("sys.executable")]


def test_what_the_package_starts_is_listed() -> None:
    found = {name: sorted(started(text)) for name, text in texts().items()}
    assert {name: lines for name, lines in found.items() if lines} == STARTED


def test_python_is_started_without_the_current_folder() -> None:
    named = [line for lines in STARTED.values() for line in lines]
    for name, text in texts().items():
        lines = pythons(text) if "executable" in text else []
        for line in lines:
            assert re.match(r"sys\.executable '-[PI]'", line), f"{name}: {line}"
            assert any(each.endswith(line) for each in [*named, *PYTHON.values()]), name
        asked = len(re.findall(r"\bexecutable\b(?!\))", text))
        assert asked == len(lines), f"{name}: a command line that this test does not see"


def texts() -> dict[str, str]:
    """The package's files that name anything of the kind."""
    words = re.compile(
        r"subprocess|processing|os\.(exec|spawn|posix_spawn|system|popen|fork|startfile)|import pty"
        r"|from (os|subprocess|pty) |ProcessPool|Spawn|find_library|executable"
    )
    found = {str(path.relative_to(PACKAGE)): path.read_text() for path in sources("osucaffe")}
    return {name: text for name, text in found.items() if words.search(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("subprocess.run([sys.executable, '-c', x])", ["subprocess.run: sys.executable '-c' x"]),
        ("from os import execv", ["os.execv: "]),
        ("f = functools.partial(os.posix_spawn, a)", ["os.posix_spawn: "]),
        ("multiprocessing.get_context('spawn')", ["multiprocessing.get_context: 'spawn'"]),
        ("def f(x: subprocess.Popen[bytes]): pass", []),
    ],
)
def test_a_process_would_be_found(text: str, expected: list[str]) -> None:
    assert started(text) == expected


class Source:
    """A source of batches that knows where its process found json."""

    def fill(self, position: int, arrays: list[np.ndarray]) -> None:
        arrays[0][...] = len(sys.modules["json"].__file__ or "")


def read_with_processes(folder: Path) -> None:
    pipe = Pipeline(Source().fill, [(2, 1)], depth=1, workers=Processes)
    value = pipe.next()[0].array[0, 0]
    pipe.close()
    assert value == len(sys.modules["json"].__file__ or "")


def read_hdf5(folder: Path) -> None:
    with h5py.File(folder / "a.h5", "w") as file:
        file["a"] = np.arange(3)
    hdf5._forget()  # those that were started elsewhere
    with hdf5.reading_hdf5(folder / "a.h5", "file") as file:
        assert file.array("a").tolist() == [0, 1, 2]


def run_the_command(folder: Path) -> None:
    words = [*_command(1)[:4], "--version"]
    assert "osucaffe" in subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reader processes are Linux's")
@pytest.mark.parametrize("start", [read_with_processes, read_hdf5, run_the_command])
def test_what_lies_in_the_current_folder_is_not_run(
    start: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {*sys.stdlib_module_names, "numpy", "h5py", "osucaffe"}:
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close(); raise SystemExit\n")
    monkeypatch.chdir(tmp_path)
    start(tmp_path)
    assert not (tmp_path / "ran").exists()
