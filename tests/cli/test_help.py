"""Tests of what the program says about itself, and of how it takes its options."""

from __future__ import annotations

import argparse
import errno
import functools
import re
import subprocess
import sys
from typing import NoReturn

import pytest

from osucaffe.backends.cores import usable_cores
from osucaffe.cli import COMMANDS, _normalize, main
from osucaffe.proto import parse_text

from .conftest import Cli


def test_help_comes_at_once() -> None:
    """What takes time is to import modules: Python loads some 70 for itself."""
    script = "import sys, osucaffe.cli as c; c._parser().format_help(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "google.protobuf", "rich", "h5py", "lmdb"} & {*loaded}
    assert len(loaded) < 210


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(cli: Cli, command: str) -> None:
    result = cli.ok(command, "-help" if command == "train" else "--help")
    assert result.out.startswith(f"usage: osucaffe {command}")


def test_the_flags_of_caffe_are_there(cli: Cli) -> None:
    flags = {
        "train": "solver snapshot weights sigint_effect sighup_effect gpu level stage log_dir",
        "test": "model weights iterations gpu level stage log_dir",
        "time": "model weights iterations phase gpu level stage log_dir",
    }
    for command, names in flags.items():
        text = cli(command, "--help").out
        assert [name for name in names.split() if f"--{name} " not in text] == []


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("-solver", "--solver"),
        ("--solver=a-b_c", "--solver=a-b_c"),
        ("-solver=x", "--solver=x"),
        ("--log-dir", "--log_dir"),
        ("--no-progress", "--no_progress"),
        ("--gray=true", "--gray"),
        ("-h", "-h"),
        ("-1", "-1"),
        ("a-file", "a-file"),
    ],
)
def test_one_dash_or_two(given: str, meant: str) -> None:
    assert _normalize([given]) == [meant]


def test_nothing_changes_behind_two_dashes_alone() -> None:
    assert _normalize(["-a-b", "--", "-a-b"]) == ["--a_b", "--", "-a-b"]


def test_an_unknown_option_is_a_usage_error(cli: Cli) -> None:
    result = cli("train", "--solver", "x", "--sover", "y")
    assert result.code == 2
    assert "unrecognized arguments: --sover (did you mean --solver?)" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "osucaffe: there is no command 'trian' (did you mean train?)"),
        (["frobnicate"], "osucaffe: there is no command 'frobnicate'; see osucaffe --help"),
        (["data", "mnits"], "osucaffe data: there is no command 'mnits' (did you mean mnist?)"),
        (["train", "--sovler", "x"], "unrecognized arguments: --sovler (did you mean --solver?)"),
        (["--vesion"], "osucaffe: unrecognized arguments: --vesion (did you mean --version?)"),
        (["train", "--solver", "x", "--bogus"], "unrecognized arguments: --bogus; see"),
    ],
)
def test_typing_errors_get_a_hint(cli: Cli, words: list[str], message: str) -> None:
    result = cli(*words)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_an_interrupt_while_the_command_line_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(only: str | None) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("osucaffe.cli._parser", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "osucaffe: interrupted\n"


def test_memory_that_the_system_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(args: argparse.Namespace) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")  # of mmap: it names no file

    monkeypatch.setattr("osucaffe.cli.nets.layers.run", refused)
    assert main(["layers"]) == 1
    message = "osucaffe: out of memory (Cannot allocate memory): lower the batch size\n"
    assert capsys.readouterr().err == message


def test_too_many_threads_are_told(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver()
    many = str(usable_cores() + 1)
    result = cli.ok("train", "--solver", "solver.prototxt", "--max_iter", "1", "--threads", many)
    assert f"--threads {many}: more than the" in result.err


def test_what_nobody_expected_is_a_message_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But an error in a user's own code keeps its traceback."""
    monkeypatch.setattr("osucaffe.cli.nets.layers.run", lambda args: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # this file is a user's
        main(["layers"])
    monkeypatch.setattr(
        "osucaffe.cli.nets.layers.run", functools.partial(parse_text, message_type=3)
    )
    assert main(["layers"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert re.match(r"osucaffe: \w+Error: .* \(at \w+\.py:\d+\)\. Nothing should end so", line)
