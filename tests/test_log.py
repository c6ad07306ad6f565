"""Tests that log lines have glog's form, which Caffe's own tools for logs read."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from osucaffe import log
from osucaffe.errors import UserError

PREFIX = re.compile(
    r"^(?P<severity>[IWEF])(?P<month>\d\d)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d\.\d{6}) +"
    r"(?P<thread>\d+) (?P<file>[\w.]+):(?P<line>\d+)\] (?P<message>.*)$"
)


@pytest.mark.parametrize(
    ("level", "letter"),
    [(logging.INFO, "I"), (logging.WARNING, "W"), (logging.ERROR, "E"), (logging.CRITICAL, "F")],
)
def test_a_line_has_the_prefix_of_glog(
    capsys: pytest.CaptureFixture[str], level: int, letter: str
) -> None:
    log.start()
    log.start()  # which does not write twice
    logging.getLogger("osucaffe.solvers").log(level, "Iteration %d, lr = %g", 100, 0.01)
    (line,) = capsys.readouterr().err.splitlines()
    match = PREFIX.match(line)
    assert match
    assert (match["severity"], match["file"]) == (letter, "test_log.py")
    assert match["message"] == "Iteration 100, lr = 0.01"


def test_a_log_dir_gets_a_file_and_a_link(tmp_path: Path) -> None:
    log.start(str(tmp_path / "new"))
    logging.getLogger("osucaffe").info("text")
    link = tmp_path / "new" / "osucaffe.INFO"
    assert re.fullmatch(r"osucaffe\.\S+\.\S+\.log\.INFO\.\d{8}-\d{6}\.\d+", str(link.readlink()))
    lines = link.read_text().splitlines()
    assert lines[0].startswith("Log file created at: ")
    assert PREFIX.match(lines[-1])


def test_a_log_dir_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot write the log there"):
        log.start(str(tmp_path / "file"))


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_a_log_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., None]
) -> None:
    """Another user of the folder, who foresees the name, would have a file of ours overwritten."""
    monkeypatch.setattr(log.time, "strftime", lambda *_: "20260101-000000")
    log.start(str(tmp_path / "a"))
    [name] = [path.name for path in (tmp_path / "a").iterdir() if path.name != "osucaffe.INFO"]
    (tmp_path / "b").mkdir()
    (tmp_path / "victim").write_text("precious")
    make(tmp_path / "victim", tmp_path / "b" / name)
    log.start(str(tmp_path / "b"))
    logging.getLogger("osucaffe").info("text")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "b" / "osucaffe.INFO").read_text().splitlines()[-1].endswith("] text")
