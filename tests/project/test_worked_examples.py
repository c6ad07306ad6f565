"""The diffs in examples/extending apply, and what each adds passes the tests that it names."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "examples" / "extending").glob("*.diff"))
BESIDES_TESTS = {
    "kernel": 3,
    "layer": 2,
    "primitive": 5,
}
"""How many files an extension may touch at most."""


def touched(text: str) -> list[str]:
    lines = [line for line in text.splitlines() if line.startswith("+++ b/")]
    return [line.removeprefix("+++ b/") for line in lines]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_touches_few_files(path: Path) -> None:
    files = [name for name in touched(path.read_text()) if not name.startswith("tests/")]
    assert 0 < len(files) <= BESIDES_TESTS[path.stem]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    kept = shutil.ignore_patterns("__pycache__", "fixtures")
    for folder in "osucaffe", "tests":
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=kept)
    (tmp_path / "tests" / "fixtures").symlink_to(ROOT / "tests" / "fixtures")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    outside = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    # Git would leave out all files where the folder lies in a clone.
    outside |= {"PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=outside, capture_output=True, text=True, check=False
        )

    applied = run("git", "apply", "--whitespace=error-all", str(path))
    assert applied.returncode == 0, applied.stderr
    where = run(sys.executable, "-c", "import osucaffe; print(osucaffe.__file__)").stdout
    assert where.startswith(str(tmp_path))
    _, command, *_ = path.read_text().splitlines()
    done = run(sys.executable, "-m", *shlex.split(command), "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
