"""The folder of what was compiled and chosen, also where the usual one cannot be written to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from osucaffe.backends.cuda.runtime import cache
from tests.processes import python

ASK = """
from osucaffe.backends.cuda.runtime.cache import *
from tests.processes import python
f = cache_folder()
keep(f / "a", b"1")
print(f)
"""


def ask(cache: Path) -> Path:
    return Path(python("-c", ASK, OSUCAFFE_CACHE=str(cache)).stdout.strip())


def test_what_is_kept_lies_in_the_folder(tmp_path: Path) -> None:
    assert ask(tmp_path / "new" / "cache") == tmp_path / "new" / "cache"
    assert [path.name for path in (tmp_path / "new" / "cache").iterdir()] == ["a"]


def test_a_folder_that_goes_with_the_process_stands_in(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    instead = ask(tmp_path / "file" / "cache")  # nothing can be made there, not even by root
    assert not instead.is_relative_to(tmp_path)
    assert not instead.exists()


def test_on_a_full_disk_a_file_lies_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def full(source: str, target: Path) -> None:
        if target.parent == tmp_path:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    lies = cache.keep_somewhere(tmp_path / "a", b"content")
    assert lies.read_bytes() == b"content"
    assert not lies.is_relative_to(tmp_path)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(OSError, match="No space"):
        cache.keep(tmp_path / "a", b"content")
    assert not [*tmp_path.iterdir()]
