"""The examples of docs/api.md and docs/commands.md, which run as they are there; the lines of
docs/side-by-side.md."""

from __future__ import annotations

import ast
import doctest
import re
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

import osucaffe as oc
from osucaffe.cli import main


def test_the_examples_run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(root / "models" / "lenet", tmp_path / "models" / "lenet")
    (tmp_path / "tests").symlink_to(root / "tests")
    monkeypatch.chdir(tmp_path)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    found = doctest.testfile(
        str(root / "docs" / "api.md"), module_relative=False, optionflags=flags
    )
    assert found.attempted > 10
    assert not found.failed


@pytest.mark.long
def test_the_commands_give_what_their_page_shows(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "clusters").symlink_to(root / "clusters")
    Image.new("L", (28, 28)).save(tmp_path / "digit.png")
    monkeypatch.chdir(tmp_path)
    page = (root / "docs" / "commands.md").read_text()
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", page, re.DOTALL))
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    for example in blocks.split("$ osucaffe ")[1:]:
        command, _, shown = example.partition("\n")
        capsys.readouterr()
        assert main(shlex.split(command)) == 0, command
        told = capsys.readouterr().out
        assert doctest.OutputChecker().check_output(shown.strip(), told.strip(), flags), told


def test_side_by_side_none_takes_more_lines_here(root: Path) -> None:
    page = (root / "docs" / "side-by-side.md").read_text()
    table = [re.findall(r"\| (\d+)(?= )", line) for line in page.splitlines() if "](#" in line]
    tasks = [task for task in page.split("\n## ") if "```python" in task]
    assert len(tasks) == len(table) == 6
    for task, shown in zip(tasks, table, strict=True):
        programs = re.findall(r"```python\n(.*?)```", task, re.DOTALL)
        lines = [len(program.splitlines()) for program in programs]
        assert [*map(str, lines)] == shown
        assert lines[0] == min(lines)
        for program in programs:
            ast.parse(program)


def test_what_side_by_side_calls_is_there(root: Path) -> None:
    page = (root / "docs" / "side-by-side.md").read_text()
    for name in set(re.findall(r"\boc\.(\w+)", page)):
        assert name in oc.__all__
