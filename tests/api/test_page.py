"""The examples of docs/api.md, which run as they are there."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path

import pytest


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
