"""The folder of what was compiled and chosen, also where the usual one cannot be written to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ASK = (
    "from osucaffe.backends.cuda.cache import *; f = cache_folder(); keep(f / 'a', b'1'); print(f)"
)


def ask(cache: Path) -> Path:
    environment = os.environ | {"OSUCAFFE_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


def test_what_is_kept_lies_in_the_folder(tmp_path: Path) -> None:
    assert ask(tmp_path / "new" / "cache") == tmp_path / "new" / "cache"
    assert [path.name for path in (tmp_path / "new" / "cache").iterdir()] == ["a"]


def test_a_folder_that_goes_with_the_process_stands_in(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    instead = ask(tmp_path / "file" / "cache")  # nothing can be made there, not even by root
    assert not instead.is_relative_to(tmp_path)
    assert not instead.exists()
