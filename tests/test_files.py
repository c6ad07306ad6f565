"""Files are written whole or not at all: their content reaches the disk before their name does;
what a killed process leaves goes away."""

from __future__ import annotations

import os
import platform
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe import files
from osucaffe.data.databases import database
from osucaffe.data.databases.database import write_database
from osucaffe.errors import UserError
from osucaffe.files import (
    check_length,
    open_new,
    read_bytes,
    remove_leftovers,
    replacing,
    temporary_beside,
    write_bytes,
)

FullDisk = Callable[[int], AbstractContextManager[None]]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, full_disk: FullDisk) -> None:
    write_bytes(tmp_path / "f.txt", b"old")
    with full_disk(10), pytest.raises(UserError, match=r"f\.txt: cannot write it: File too large"):
        write_bytes(tmp_path / "f.txt", b"longer than that")
    assert read_bytes(tmp_path / "f.txt") == b"old"
    assert os.listdir(tmp_path) == ["f.txt"]


def test_space_is_asked_for_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(blocks: int) -> None:
        disk = SimpleNamespace(f_bavail=2, f_frsize=512, f_blocks=blocks)
        monkeypatch.setattr("os.fstatvfs", lambda descriptor: disk)

    write_bytes(tmp_path / "f", b"old")
    tell(blocks=9)
    write_bytes(tmp_path / "f", bytes(1024))
    refusal = "cannot write it: it needs 1,025 bytes, but only 1,024"
    with pytest.raises(UserError, match=refusal):
        write_bytes(tmp_path / "f", bytes(1025))
    assert read_bytes(tmp_path / "f") == bytes(1024)
    tell(blocks=0)  # the file system does not know
    write_bytes(tmp_path / "f", bytes(1025))


def test_what_has_no_end_is_not_read_for_ever() -> None:
    with pytest.raises(
        UserError, match="/dev/zero: cannot read it: it is not a regular file, and does not end"
    ):
        read_bytes("/dev/zero")
    assert read_bytes("/dev/null") == b""


def test_a_pipe_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)
    write_bytes(path, b"content")
    assert os.read(end, 100) == b"content"
    os.close(end)
    assert stat.S_ISFIFO(path.stat().st_mode)
    with pytest.raises(UserError, match="cannot write it: Is a directory"):
        write_bytes(tmp_path, b"content")
    assert os.listdir(tmp_path) == ["pipe"]


def test_content_reaches_the_disk_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, Path.replace

    def spy_fsync(descriptor: int) -> None:
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        events.append("fsync folder" if target == str(tmp_path) else "fsync file")
        fsync(descriptor)

    def spy_replace(source: Path, target: Path) -> Path:
        events.append("rename")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    write_bytes(tmp_path / "f", b"content")
    assert events == ["fsync file", "rename", "fsync folder"]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with replacing(tmp_path / "f") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not os.listdir(tmp_path)


def test_a_pipe_that_nobody_writes_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of, and ends with a message."""
    monkeypatch.setattr(files, "_PATIENCE", (0.0, 0.0))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: cannot read it: it is a pipe, and no process wr"):
        read_bytes(tmp_path / "pipe")


def test_a_pipe_brings_a_file() -> None:
    """As `--solver <(...)` has it."""
    reading, writing = os.pipe()
    os.write(writing, b"net: 1")
    os.close(writing)
    try:
        assert read_bytes(f"/dev/fd/{reading}") == b"net: 1"
    finally:
        os.close(reading)


WRITE = """
import sys
from pathlib import Path
from osucaffe.files import temporary_beside
with temporary_beside(Path(sys.argv[1]), folder=sys.argv[2] == "folder") as temporary:
    print(temporary.path.name, flush=True)
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
    gone = [
        f".run.{host}.{NONE}.tmp",
        f".run_iter_9.{host}.{NONE}.tmp.caffemodel",
        f".run_iter_9.caffemodel.{host}.{NONE}.0123456789abcdef.tmp",
        f".run.{host}.{os.getpid()}.0123456789abcdef.tmp",  # an earlier process had our number
    ]
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
        temporary.path.rename(
            locked
        )  # as a process in another container, whose number is unknown here
        remove_leftovers(tmp_path)
        assert sorted(os.listdir(tmp_path)) == sorted([*stay, locked.name])
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(stay)
    remove_leftovers(tmp_path / "none")


def test_others_cannot_foresee_a_temporary(tmp_path: Path) -> None:
    """In a folder that they may write to, they would put a link there to a file of ours."""
    with temporary_beside(tmp_path / "f") as a, temporary_beside(tmp_path / "f") as b:
        assert a.path != b.path
        assert re.fullmatch(r"\.f\..+\.[0-9a-f]{16}\.tmp", a.path.name)


def link_in_place_of_a_temporary(folder: Path, victim: Path) -> None:
    """What another user can do who sees the temporary's name."""
    [temporary] = [path for path in folder.iterdir() if path.name.endswith(".tmp")]
    temporary.rename(folder / "moved")
    temporary.symlink_to(victim)


def test_a_link_in_place_of_a_temporary_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    with replacing(tmp_path / "f") as file:
        link_in_place_of_a_temporary(tmp_path, tmp_path / "victim")
        file.write(b"content")
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_link_in_place_of_a_database_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    write_database(victim, [(b"0", b"precious")])
    before = (victim / "data.mdb").read_bytes()

    def records() -> Iterator[tuple[bytes, bytes]]:
        yield b"1", b"content"

    def swap(path: Path, *rest: Any) -> int:
        link_in_place_of_a_temporary(tmp_path, victim)
        return write(path, *rest)

    write = database._write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_write", swap)
        write_database(tmp_path / "new", records())
    assert (victim / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_new_file_is_none_that_is_there(tmp_path: Path, make: Callable[..., None]) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    make(tmp_path / "victim", tmp_path / "new")
    with pytest.raises(FileExistsError):
        open_new(str(tmp_path / "new"), os.O_WRONLY | os.O_TRUNC)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_the_longest_name_has_a_temporary(tmp_path: Path) -> None:
    longest = "\N{LATIN SMALL LETTER E WITH ACUTE}" * 127
    write_bytes(tmp_path / longest, b"content")
    check_length(tmp_path / longest)
    assert os.listdir(tmp_path) == [longest]
    # Of the second, the file's name would do, but not its temporary's.
    for path in tmp_path / (longest + "aa"), "/".join(["a" * 203] * 20) + "/f":
        with pytest.raises(OSError, match="File name too long"):
            check_length(path)


def test_a_process_that_ends_at_once_removes_its_temporaries(tmp_path: Path) -> None:
    """As a second Ctrl-C has it, while a thread writes a snapshot; no other is made afterwards."""
    code = """
import os, sys, threading
from osucaffe import files
begun = threading.Event()
def write():
    with files.replacing(sys.argv[1]) as file:
        begun.set()
        threading.Event().wait()
threading.Thread(target=write, daemon=True).start()
begun.wait()
files.remove_temporaries()
threading.Thread(target=files.write_bytes, args=(sys.argv[1] + "2", b""), daemon=True).start()
print(os.listdir(os.path.dirname(sys.argv[1])), flush=True)
os._exit(0)
"""
    line = [sys.executable, "-c", code, str(tmp_path / "run_iter_5.caffemodel")]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == "[]\n"
    assert not os.listdir(tmp_path)
