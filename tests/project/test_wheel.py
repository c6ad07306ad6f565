"""The wheel: it is built without a warning, has every file of the package, and what is installed
from it runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
UNPACKED = ("__pycache__", "*.pyc", "*.caffemodel", "*.solverstate", "*.log")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def run(*command: str, cwd: Path, **environment: str) -> str:
    """What a command prints. AssertionError where it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=cwd, env=kept | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in "osucaffe", "models":
        ignored = shutil.ignore_patterns(*UNPACKED)
        shutil.copytree(root / name, source / name, symlinks=True, ignore=ignored)
    for name in "pyproject.toml", "README.md", "LICENSE":
        shutil.copy(root / name, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--verbose", "--wheel-dir")
    told = run(*PIP, "wheel", *options, str(folder), str(source), cwd=folder)
    warnings = [line for line in told.splitlines() if "warning" in line.lower()]
    assert not warnings, told
    (made,) = folder.glob("osucaffe-*-py3-none-any.whl")
    return made


def test_it_has_every_file(wheel: Path, root: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
    files = {
        path.relative_to(root).as_posix()
        for path in (root / "osucaffe").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {
        f"osucaffe/{path.relative_to(root).as_posix()}"
        for path in (root / "models").rglob("*")
        if path.suffix in (".prototxt", ".md", ".py")
    }
    assert names == files
    assert {Path(name).suffix for name in names} >= {".cu", ".cuh", ".proto", ".pyi", ".xz"}
    assert "osucaffe/py.typed" in names


def test_what_is_installed_runs(wheel: Path, root: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    run(
        *PIP, "install", "--no-deps", "--no-index", "--target", str(there), str(wheel), cwd=tmp_path
    )
    where = "import osucaffe; print(osucaffe.__file__)"
    found = run(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(there))
    assert Path(found.strip()).parent == there / "osucaffe"
    program = str(there / "bin" / "osucaffe")
    model = str(root / "models" / "lenet" / "deploy.prototxt")
    command = (program, "time", "--model", model, "--iterations", "1")
    told = run(*command, cwd=tmp_path, PYTHONPATH=str(there))
    assert "conv1" in told
    run(program, "models", "copy", "lenet", cwd=tmp_path, PYTHONPATH=str(there))
    copied = tmp_path / "models" / "lenet" / "deploy.prototxt"
    assert copied.read_bytes() == Path(model).read_bytes()


@pytest.mark.long
def test_import_caffe_for_a_whole_environment(root: Path, tmp_path: Path) -> None:
    """Where a script looks for a Caffe of its own, too; and it goes as it came."""
    source = tmp_path / "source"
    shutil.copytree(root / "packaging" / "import_caffe", source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path))
    run(*PIP, "wheel", *options, str(source), cwd=tmp_path)
    (made,) = tmp_path.glob("osucaffe_import_caffe-*-py3-none-any.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv"), cwd=tmp_path)
    there = str(tmp_path / "venv" / "bin" / "python")
    pip = (*PIP, "--python", there)
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.path.insert(0, 'own'); import caffe; print(caffe.__name__)")
    (tmp_path / "own" / "caffe").mkdir(parents=True)
    (tmp_path / "own" / "caffe" / "__init__.py").write_text("print('not compiled')")
    paths = os.pathsep.join([str(root), sysconfig.get_path("purelib")])  # what it stands on
    run(*pip, "install", "--no-deps", "--no-index", str(made), cwd=tmp_path)
    assert run(there, str(script), cwd=tmp_path, PYTHONPATH=paths) == "osucaffe.pycaffe\n"
    run(*pip, "uninstall", "--yes", "osucaffe-import-caffe", cwd=tmp_path)
    assert "not compiled" in run(there, str(script), cwd=tmp_path, PYTHONPATH=paths)
