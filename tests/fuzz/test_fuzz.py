"""What once ended the program without a message is told in one, and so is what some mutations make
of every kind of input."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes import python

from .targets import KINDS

REGRESSIONS = sorted((Path(__file__).parent / "regressions").iterdir())

fuzz = functools.partial(python, "-m", "tests.fuzz", timeout=1800)


def run_each(out: Path, kinds: Sequence[str], count: int, *files: str) -> None:
    """None of the files fails, nor of so many inputs of each kind."""
    wanted = [f"--kinds={','.join(kinds)}", f"--inputs={count}", "--processes=1", f"--out={out}"]
    done = fuzz(*wanted, "--seed=2", "--files", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    [total] = re.findall(r"^all +([\d,]+)", done.stdout, re.MULTILINE)
    assert int(total.replace(",", "")) == len(files) + len(kinds) * count


def test_regressions_and_mutations(tmp_path: Path) -> None:
    """Each file in regressions/ is named after its kind."""
    run_each(tmp_path, KINDS, 15, *map(str, REGRESSIONS))


@pytest.mark.long
@pytest.mark.parametrize("kinds", [KINDS[n::4] for n in range(4)], ids=",".join)
def test_mutations(tmp_path: Path, kinds: list[str]) -> None:
    """So many of a fixed seed, not as many as a machine is able to."""
    run_each(tmp_path, kinds, 50)


@pytest.mark.long
def test_a_minute_of_mutations(tmp_path: Path) -> None:
    done = fuzz("--inputs=2500", "--seed=3", f"--out={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_harness_tells_of_what_fails(tmp_path: Path) -> None:
    (tmp_path / "broken-signal").write_text("abort")
    (tmp_path / "broken-bug").write_text("xxxxraisexx")
    (tmp_path / "broken-memory").write_text("memory")
    files = map(str, tmp_path.iterdir())
    out = tmp_path / "found"
    done = fuzz("--kinds=", "--processes=2", f"--out={out}", "--files", *files)
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
