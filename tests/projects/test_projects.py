"""What `make projects` runs, and what it says, with a page of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import __main__ as program

PAGE = """# Projects
```sh
pip install six
```
## a/good
Python 2.
```sh
grep lifted script.py
```
## a/bad
```sh
touch made
echo told; echo "the reason" >&2; exit 3
```
## a/absent
```sh
true
```
"""


def test_each_project_is_run_in_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(program, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(program, "LIFT", ("sh", "-c", "echo lifted >> script.py"))
    program.PAGE.write_text(PAGE)
    assert program.main() == 2
    for name in "good", "bad":
        (tmp_path / "a" / name).mkdir(parents=True)
    monkeypatch.setenv("PROJECTS", str(tmp_path))
    capsys.readouterr()
    assert program.main() == 1
    assert [line.rpartition(" (")[0] or line for line in capsys.readouterr().out.splitlines()] == [
        "a/good: ok",
        "a/bad: exit code 3: the reason",
        "a/absent: not there",
    ]
    assert not list((tmp_path / "a").glob("*/*"))


def test_the_page_names_ten(root: Path) -> None:
    found = program.projects((root / "docs" / "projects.md").read_text())
    assert len(found) >= 10
    assert all("osucaffe run" in commands for commands, _ in found.values())
