"""What once ended the program without a message is told in one, and so is what some mutations make
of every kind of input."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REGRESSIONS = sorted((Path(__file__).parent / "regressions").iterdir())


def fuzz(root: Path, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_regressions_and_mutations(root: Path, tmp_path: Path) -> None:
    """Each file in regressions/ is named after its kind."""
    files = [str(path) for path in REGRESSIONS]
    done = fuzz(
        root, "--inputs=20", "--seed=2", "--processes=1", f"--out={tmp_path}", "--files", *files
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [total] = re.findall(r"^all +(\d+)", done.stdout, re.MULTILINE)
    assert int(total) == len(files) + 16 * 20


@pytest.mark.long
def test_a_minute_of_mutations(root: Path, tmp_path: Path) -> None:
    """Of a fixed seed; so many of each kind, not as many as a machine is able to."""
    done = fuzz(root, "--inputs=300", "--seed=3", f"--out={tmp_path}", timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_harness_tells_of_what_fails(root: Path, tmp_path: Path) -> None:
    (tmp_path / "broken-signal").write_text("abort")
    (tmp_path / "broken-bug").write_text("xxxxraisexx")
    (tmp_path / "broken-memory").write_text("memory")
    files = map(str, tmp_path.iterdir())
    out = tmp_path / "found"
    done = fuzz(root, "--kinds=", "--processes=2", f"--out={out}", "--files", *files)
    assert done.returncode == 1
    assert {"SIGABRT", "ZeroDivisionError", "MemoryError"} < set(done.stdout.split())
    assert sorted(path.read_text() for path in out.iterdir()) == ["abort", "memory", "raise"]


@pytest.mark.parametrize("seed", [1, 2])
def test_inputs_depend_on_the_seed_and_the_number_only(seed: int) -> None:
    from .inputs import Kind, make_input
    from .mutate import mutate_bytes

    kind = Kind([b"some bytes", b"others"], mutate_bytes)
    first = [make_input(kind, "k", seed, number) for number in range(50)]
    assert first == [make_input(kind, "k", seed, number) for number in range(50)]
    assert len(set(first)) > 40
    assert first != [make_input(kind, "k", 3, number) for number in range(50)]
