"""Temporary files of processes that were killed go away; those of all others stay."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from osucaffe.files import remove_leftovers, temporary_beside

WRITE = """
import sys
from pathlib import Path
from osucaffe.files import temporary_beside
with temporary_beside(Path(sys.argv[1]), folder=sys.argv[2] == "folder") as temporary:
    print(temporary.name, flush=True)
    sys.stdin.read()
"""
NONE = 2**22 + 1
"""A number that no process has."""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_has_left_goes_away(tmp_path: Path, kind: str) -> None:
    line = [sys.executable, "-c", WRITE, str(tmp_path / "run_iter_5.caffemodel"), kind]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        name = writer.stdout.readline().strip()
        assert os.listdir(tmp_path) == [name]
        remove_leftovers(tmp_path)
        assert os.listdir(tmp_path) == [name]
        writer.kill()
    remove_leftovers(tmp_path)
    assert not os.listdir(tmp_path)


def test_what_is_not_of_a_process_of_this_host_that_has_ended_stays(tmp_path: Path) -> None:
    host = platform.node()
    gone = [f".run.{host}.{NONE}.tmp", f".run_iter_9.{host}.{NONE}.tmp.caffemodel"]
    stay = [
        f".run.other-{host}.{NONE}.tmp.h5",
        f".run.{host}.{os.getppid()}.tmp.h5",
        f"run.{host}.{NONE}.tmp.h5",
        f".run.{host}.{NONE}.tmp.h5.old",
        f".run.{host}.x.tmp",
        ".tmp",
    ]
    for name in gone + stay:
        (tmp_path / name).write_bytes(b"content")
    locked = tmp_path / f".locked.{host}.{NONE}.tmp"
    with temporary_beside(tmp_path / "locked") as temporary:
        temporary.rename(locked)  # as a process in another container, whose number is unknown here
        remove_leftovers(tmp_path)
        assert sorted(os.listdir(tmp_path)) == sorted([*stay, locked.name])
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(stay)
    remove_leftovers(tmp_path / "none")
