"""Files are written whole or not at all: their content reaches the disk before their name does."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

from osucaffe import files
from osucaffe.errors import UserError
from osucaffe.files import read_bytes, replacing, write_bytes

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
        monkeypatch.setattr("os.statvfs", lambda folder: disk)

    write_bytes(tmp_path / "f", b"old")
    tell(blocks=9)
    write_bytes(tmp_path / "f", bytes(1024))
    refusal = "cannot write it: it needs 1,025 bytes, but only 1,024"
    with monkeypatch.context() as patch:
        patch.delattr(Path, "open")
        with pytest.raises(UserError, match=refusal):
            write_bytes(tmp_path / "f", bytes(1025))
    assert read_bytes(tmp_path / "f") == bytes(1024)
    tell(blocks=0)  # the file system does not know
    write_bytes(tmp_path / "f", bytes(1025))


def test_what_has_no_end_is_not_read_for_ever() -> None:
    with pytest.raises(UserError, match="/dev/zero: cannot read it: it is no file, and has no end"):
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
        with replacing(tmp_path / "f") as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not os.listdir(tmp_path)


def test_a_pipe_that_nobody_writes_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of, and ends with a message."""
    monkeypatch.setattr(files, "_PATIENCE", (0.0, 0.0))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: cannot read it: it is a pipe into which nobody wr"):
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
