"""Tests of what scripts use: results as JSON, --quiet, the version, completion in a shell."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import osucaffe
from osucaffe.cli import COMMANDS, _parser, main

from .conftest import Cli


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, fixtures: Path) -> Cli:
    """A trained net: run_iter_10.caffemodel, and its log in logs."""
    cli = Cli(tmp_path_factory.mktemp("trained"), fixtures)
    cli.write_net()
    cli.write_solver()
    assert cli("train", "--solver", "solver.prototxt", "--log_dir", "logs", "--quiet").err == ""
    return cli


def test_quiet_leaves_the_log_file_whole(trained: Cli) -> None:
    assert "Optimization Done." in (trained.folder / "logs" / "osucaffe.INFO").read_text()


def test_scores(trained: Cli) -> None:
    words = ["--model=net.prototxt", "--weights=run_iter_10.caffemodel", "--iterations=2"]
    done = trained("test", *words, "--json")
    found = json.loads(done.out)
    values = {each["name"]: each["value"] for each in found["outputs"]}
    assert found["iterations"] == 2
    assert values.keys() == {"accuracy", "loss"}
    assert f"accuracy = {values['accuracy']:g}" in done.err
    assert found["loss"] == pytest.approx(values["loss"])


def test_times(trained: Cli) -> None:
    found = json.loads(trained("time", "--model=net.prototxt", "--iterations=1", "--json").out)
    rows = {row["name"]: row for row in found["layers"]}
    assert rows["ip"]["forward"]["flops"] == 8 * 10 * (2 * 784 + 1)
    assert rows["ip"]["forward"]["milliseconds"] > 0
    assert found["memory"]["parameters"] >= 4 * 7850


def test_logs(trained: Cli) -> None:
    found = json.loads(trained("parse_log", "logs/osucaffe.INFO", "--json").out)
    assert [row["NumIters"] for row in found["train"]] == [0, 2, 4, 6, 8]
    assert [row["NumIters"] for row in found["tests"]["0"]] == [0, 5, 10]
    assert "FOLDER" in trained("parse_log", "logs/osucaffe.INFO").err


def test_the_machine_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device_query", "--json"]) == 0
    assert {"CPU", "NumPy", "Python"} <= json.loads(capsys.readouterr().out).keys()
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"osucaffe {osucaffe.__version__}\n"
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["osucaffe"] == osucaffe.__version__


def test_help_lists_every_command() -> None:
    lines = _parser().format_help().splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert [name for name in listed if name in COMMANDS] == [*COMMANDS]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tr"], {"train"}),
        (["train", "--so"], {"--solver"}),
        (["train", "--decode", ""], {"host", "gpu"}),
        (["data", "mni"], {"mnist"}),
        (["data", "mnist", "--sou"], {"--source"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(
    words: list[str], expected: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    typed = " ".join(f"'{word}'" for word in ["osucaffe", *words])
    script = capsys.readouterr().out + (
        f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _osucaffe; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    if (bash := shutil.which("bash")) is None:
        pytest.skip("no bash")
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert expected <= found
    assert all(word.startswith(words[-1]) for word in found)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)
