"""A snapshot prefix belongs to one training at a time, until that ends, however it does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from osucaffe.errors import UserError
from osucaffe.solvers.snapshots import claim as module
from osucaffe.solvers.snapshots.claim import claim

HOLD = """
import sys
from osucaffe.solvers.snapshots.claim import claim
with claim(sys.argv[1], "first.prototxt"):
    print("claimed", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_told_until_the_first_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    prefix = str(tmp_path / "run")
    line = [sys.executable, "-c", HOLD, prefix]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout
        assert first.stdout.readline() == "claimed\n"
        with (
            pytest.raises(UserError, match=rf"^s: another .*run' \(process {first.pid} on "),
            claim(prefix, "s"),
        ):
            pytest.fail("both have it")
        with claim(str(tmp_path / "other"), "s"):
            pass
        first.kill()
    with claim(prefix, "s"):
        assert [path.name for path in tmp_path.iterdir()] == [".run.lock"]
    assert not [*tmp_path.iterdir()]


def test_a_run_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    ends = threading.Event()
    prefix = str(tmp_path / "run")

    def hold() -> None:
        with claim(prefix, "s"):
            begun.set()
            ends.wait(60)

    begun, first = threading.Event(), threading.Thread(target=hold)
    first.start()
    begun.wait(60)
    threading.Timer(0.1, ends.set).start()
    with claim(prefix, "s"):
        assert ends.is_set()
    first.join()
    assert not [*tmp_path.iterdir()]


def test_where_there_are_no_locks_nothing_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not supported")

    with claim(str(tmp_path / "none" / "run"), "s"):
        pass
    monkeypatch.setattr(fcntl, "flock", refuse)
    with claim(str(tmp_path / "run"), "s"), claim(str(tmp_path / "run"), "s"):
        pass


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_the_lock_is_written_into_no_other_file(tmp_path: Path, make: Callable[..., None]) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    make(tmp_path / "victim", tmp_path / ".run.lock")
    with claim(str(tmp_path / "run"), "s"):
        assert (tmp_path / "victim").read_bytes() == b"precious"
