"""Tests of the display on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios

import pytest

from tests.comm.ranks import needs_mpi

from ..conftest import Cli

WIDTH = 100
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_terminal(cli: Cli, *arguments: str, stop_at: bytes = b"") -> tuple[int, str]:
    """Run the program on a terminal of its own: its exit code, and all that it wrote there.

    stop_at: when this has been written, Ctrl-C is typed.
    """
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 40, WIDTH, 0, 0))
        os.chdir(cli.folder)
        command = cli.command(arguments)
        environment = cli.environment(TERM="xterm-256color")
        for size in "COLUMNS", "LINES":  # which would be believed before the terminal
            environment.pop(size, None)
        os.execve(command[0], command, environment)
    written = b""
    try:
        while part := os.read(terminal, 1 << 16):
            written += part
            if stop_at and stop_at in written:
                os.write(terminal, b"\x03")
                stop_at = b""
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), written.decode()


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=needs_mpi)])
def test_training_shows_a_bar_below_the_log(ready: Cli, ranks: int) -> None:
    command = ["train", "--solver", "solver.prototxt", "--ranks", str(ranks)]
    code, written = on_terminal(ready, *command)
    text = ESCAPES.sub("", written)
    assert code == 0, text
    scores, bar = re.findall(r"[^\r\n]+", text)[-2:]
    assert re.search(r"loss \S+  test accuracy \S+  test loss \S+", scores)
    assert "10/10" in bar
    assert len(bar) == WIDTH - len("^C^C")
    assert "iter/s" in bar
    assert "] Optimization Done." in text


def test_a_run_that_stops_early_leaves_no_bar(ready: Cli) -> None:
    ready.write_solver("test_interval: 1\nbase_lr: 0\nmax_iter: 100000")
    options = "--best=accuracy", "--patience=1"
    code, written = on_terminal(ready, "train", "--solver", "solver.prototxt", *options)
    assert code == 0, written
    check_no_bar(written)


def test_ctrl_c_leaves_no_line_of_it(ready: Cli) -> None:
    ready.write_solver("display: 1000\nmax_iter: 100000000\ntest_interval: 100000000")
    command = "train", "--solver", "solver.prototxt"
    code, written = on_terminal(ready, *command, stop_at=b"iter/s")  # the bar's
    assert code == 130, written
    assert "^C" in written
    shown = check_no_bar(written)
    assert "^C" not in shown
    assert not re.search(r"^(epoch|training tiny)", shown, re.MULTILINE)


def check_no_bar(written: str) -> str:
    """What is on the screen at the end, which is no bar."""
    pyte = pytest.importorskip("pyte")
    screen = pyte.Screen(WIDTH, 400)
    pyte.Stream(screen).feed(written)
    shown = "\n".join(screen.display)
    assert "Optimization stopped early." in shown
    assert "iter/s\n" not in shown
    assert "left" not in shown
    return shown


def test_no_progress_leaves_it_out(ready: Cli) -> None:
    code, written = on_terminal(ready, "train", "--solver", "solver.prototxt", "--no-progress")
    assert code == 0, written
    assert not ESCAPES.search(written)


def test_without_a_terminal_there_is_none(ready: Cli) -> None:
    assert not ESCAPES.search(ready("train", "--solver", "solver.prototxt").err)


def test_time_prints_a_table(ready: Cli) -> None:
    code, written = on_terminal(ready, "time", "--model", "net.prototxt", "--iterations", "1")
    text = ESCAPES.sub("", written)
    assert code == 0, text
    assert re.search(r"ip +InnerProduct +[\d.]+", text)
    assert "100.0%" in text
