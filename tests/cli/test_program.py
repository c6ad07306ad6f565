"""What the program says about itself, how it takes its options, how it ends; completion."""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import osucaffe
from osucaffe import log
from osucaffe.backends.cores import usable_cores
from osucaffe.cli import COMMANDS, main, make_parser, parse
from osucaffe.cli.early_exit import Ended, report_early_exit
from osucaffe.cli.gflags import normalize
from osucaffe.cli.train.options import Train
from osucaffe.proto import parse_text

from .conftest import ROOT, Cli


def test_help_comes_at_once() -> None:
    """What takes time is to import modules: Python loads some 70 for itself."""
    script = "import sys, osucaffe.cli as c; c.make_parser().format_help(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "google.protobuf", "rich", "h5py", "lmdb"} & {*loaded}
    assert len(loaded) < 190


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    """The exit code of a command that ends while its line is read, and what it wrote."""
    with pytest.raises(SystemExit) as raised:
        main(words)
    return raised.value.code, *capsys.readouterr()


FLAGS = {
    "train": "solver snapshot weights sigint_effect sighup_effect gpu level stage log_dir",
    "test": "model weights iterations gpu level stage log_dir",
    "time": "model weights iterations phase gpu level stage log_dir",
}
"""Those of Caffe."""


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_and_the_flags_of_caffe(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = told([command, "-help" if command == "train" else "--help"], capsys)
    assert code == 0
    assert out.startswith(f"usage: osucaffe {command}")
    assert [name for name in FLAGS.get(command, "").split() if f"--{name} " not in out] == []


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("-solver", "--solver"),
        ("--solver=a-b_c", "--solver=a-b_c"),
        ("-solver=x", "--solver=x"),
        ("--log-dir", "--log_dir"),
        ("--no-progress", "--no_progress"),
        ("-h", "-h"),
        ("-1", "-1"),
        ("a-file", "a-file"),
    ],
)
def test_one_dash_or_two(given: str, meant: str) -> None:
    assert normalize([given]) == [meant]


CONVERT = ["convert_imageset", "./", "list.txt", "db"]


@pytest.mark.parametrize(
    ("words", "gray"),
    [
        (["--gray=false"], False),
        (["--gray=False"], False),
        (["-gray=0"], False),
        (["--gray", "-nogray"], False),
        (["--gray", "--gray=f"], False),
        (["--gray=True"], True),
        (["-gray=1"], True),
        (["--nogray", "--gray=yes"], True),
    ],
)
def test_booleans_as_gflags_reads_them(words: list[str], gray: bool) -> None:
    for line in ([*CONVERT, *words], [*words, *CONVERT], [CONVERT[0], *words, *CONVERT[1:]]):
        assert parse(line)[1].gray is gray


def test_values_as_gflags_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    def train(*words: str) -> Train:
        return parse(words)[1]

    first = train("-gpu", "2", "--solver=a", "-solver", "b", "train", "--snapshot=", "-weights=w")
    assert (first.device.gpu, first.solver, first.snapshot, first.weights) == (
        "2",
        "b",
        None,
        ["w"],
    )
    for none in (["--weights="], ["-weights", ""], ["-weights=w", "-weights="]):
        assert train("train", "-solver=a", *none).weights == []
    assert train("train", "-solver=a", "-sigint_effect=").sigint_effect == "stop"
    unused = train("-iterations", "5", "-phase=TEST", "train", "-solver", "a", "-model", "net")
    assert unused.solver == "a"
    for words, message in (
        ([*CONVERT, "--gray=maybe"], "argument --gray: must be true or false, not 'maybe'"),
        (["train", "--solver", "--gpu", "0"], "argument --solver: expected one argument"),
        (["parse_log", "log", "--delimiter"], "argument --delimiter: expected one argument"),
        (["train", "--solver="], "the following arguments are required: --solver"),
        (["train", "--solver=a", "--max_iter="], "argument --max_iter: invalid whole number"),
        (["train", "--solver=a", "--nogpu"], "unrecognized arguments: --nogpu"),
    ):
        code, _, err = told(words, capsys)
        assert code == 2
        assert message in err


def test_names_of_caffes_programs() -> None:
    for words, kind in (
        (["upgrade_net_proto_text", "a", "b"], "net"),
        (["upgrade_net_proto_binary.bin", "a", "b"], "net"),
        (["--logtostderr=1", "upgrade_solver_proto_text", "a", "b"], "solver"),
    ):
        assert parse(words)[1].kind == kind
    drawn = parse(["draw_net.py", "--rankdir", "TB", "net", "net.png"])[1]
    assert (drawn.model, drawn.rankdir) == ("net", "TB")
    read = parse(["parse_log.py", "--verbose", "log", "--delimiter", ";", "out"])[1]
    assert (read.log, read.folder, read.delimiter) == ("log", "out", ";")
    features = parse(["extract_features", "weights", "net", "fc7,prob", "a,b", "5", "lmdb", "GPU"])[
        1
    ]
    assert (features.weights, features.model, features.batches) == ("weights", "net", 5)
    assert features.device.gpu == "0"
    assert parse(["convert_mnist_data.bin", "i", "l", "db"])[1].output == "db"


def test_where_glog_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def folder(*words: str) -> str | None:
        found: str | None = parse(["time", *words, "net"])[1].log_dir
        return found

    assert folder() is None
    monkeypatch.setenv("GLOG_log_dir", "here")
    monkeypatch.setenv("GLOG_minloglevel", "0")
    assert (folder(), folder("-log_dir=there"), folder("--logtostderr")) == ("here", "there", None)
    assert folder("--minloglevel", "2", "--v=1", "--nolog_prefix") == "here"
    assert log.least_level() == logging.ERROR
    monkeypatch.setenv("GLOG_logtostderr", "1")
    assert folder("-log_dir=there") is None


def test_nothing_changes_behind_two_dashes_alone() -> None:
    assert normalize(["-a-b", "--", "-a-b"]) == ["--a_b", "--", "-a-b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "osucaffe: no command 'trian' (did you mean train?)"),
        (["frobnicate"], "osucaffe: no command 'frobnicate'; see osucaffe --help"),
        (["data", "mnits"], "osucaffe data: no command 'mnits' (did you mean mnist?)"),
        (["train", "--sovler", "x"], "unrecognized arguments: --sovler (did you mean --solver?)"),
        (["--vesion"], "osucaffe: unrecognized arguments: --vesion (did you mean --version?)"),
        (["train", "--solver", "x", "--bogus"], "unrecognized arguments: --bogus; see"),
    ],
)
def test_typing_errors_get_a_hint(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = told(words, capsys)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_an_interrupt_while_the_command_line_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(only: str | None) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("osucaffe.cli.make_parser", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "osucaffe: interrupted\n"


def test_an_interrupted_program_waits_for_no_thread() -> None:
    """Ctrl-C while a pool starts a thread leaves one that no pool knows and that never ends."""
    script = """
import sys, threading, osucaffe.cli, osucaffe.cli.nets.layers as layers
def run(args):
    threading.Thread(target=threading.Event().wait).start()
    print("some")
    raise KeyboardInterrupt
layers.run, sys.argv[1:] = run, ["layers"]
sys.exit(osucaffe.cli.main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "some\n", "osucaffe: interrupted\n")


def test_memory_that_the_system_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(options: object) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")  # of mmap: it names no file

    monkeypatch.setattr("osucaffe.cli.nets.layers.run", refused)
    assert main(["layers"]) == 1
    message = "osucaffe: out of memory (Cannot allocate memory): lower the batch size\n"
    assert capsys.readouterr().err == message


def test_too_many_threads_are_told(ready: Cli) -> None:
    many = str(usable_cores() + 1)
    result = ready.ok("train", "--solver", "solver.prototxt", "--max_iter", "1", "--threads", many)
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
    assert re.match(r"osucaffe: \w+Error: .* \(at \w+\.py:\d+\)\. This is a bug in osucaffe", line)


PROGRAM = """import os, sys
from osucaffe.cli import main
code = main(["layers"])
found = [os.readlink(f"/proc/self/fd/{number}") for number in range(3)]
with open(sys.argv[1], "w") as file:
    print(code, *found, sep="\\n", file=file)
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "012"])
def test_the_program_runs_without(tmp_path: Path, closed: str) -> None:
    close = " ".join(f"{number}>&-" for number in closed)
    line = [sys.executable, "-c", PROGRAM, str(tmp_path / "found")]
    subprocess.run(["bash", "-c", f'exec "$@" {close}', "bash", *line], timeout=600, check=True)
    code, *files = (tmp_path / "found").read_text().splitlines()
    assert code == "0"
    assert {files[int(number)] for number in closed} == {"/dev/null"}


LAYER = """
import os
import sys
import caffe

class Leaves(caffe.Layer):
    def setup(self, bottom, top):
        pass
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        child = os.fork()
        if not child:
            os._exit(0)  # which ends nothing but the child
        os.waitpid(child, 0)
        {call}
"""
NET = """
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } } }
layer { name: "leaves" type: "Python" bottom: "x" top: "z"
  python_param { module: "leaves" layer: "Leaves" } }
"""


@pytest.mark.parametrize("call", ["sys.exit(0)", "os._exit(0)"])
def test_a_layer_that_leaves_is_named(call: str, cli: Cli) -> None:
    cli.write("leaves.py", LAYER.replace("{call}", call))
    cli.write("n.prototxt", NET)
    path = os.pathsep.join([str(cli.folder), str(ROOT)])
    done = cli.fails("time", "--model=n.prototxt", "--iterations=1", PYTHONPATH=path)
    last = done.err.splitlines()[-1]
    assert last == f"osucaffe: left by {call} at leaves.py:16, before its end"


@pytest.mark.parametrize(("given", "code"), [(0, 1), (None, 1), (7, 7), (256, 1), ("why", 1)])
def test_an_exit_code_is_never_that_of_success(
    given: object, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised, report_early_exit():
        raise SystemExit(given)
    assert raised.value.code == code
    name = Path(__file__).name
    assert f"osucaffe: left by sys.exit({given!r}) at {name}:" in capsys.readouterr().err


def test_a_command_may_end_itself(capsys: pytest.CaptureFixture[str]) -> None:
    leave = os._exit
    with pytest.raises(Ended) as raised, report_early_exit():
        raise Ended(0)
    assert raised.value.code == 0
    assert os._exit is leave
    assert not capsys.readouterr().err


def test_quiet_leaves_the_log_file_whole(ready: Cli) -> None:
    assert ready.ok("train", "--solver=solver.prototxt", "--log_dir=logs", "--quiet").err == ""
    assert "Optimization Done." in (ready.folder / "logs" / "osucaffe.INFO").read_text()


def test_the_machine_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device_query", "--json"]) == 0
    assert {"CPU", "NumPy", "Python"} <= json.loads(capsys.readouterr().out).keys()
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"osucaffe {osucaffe.__version__}\n"
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["osucaffe"] == osucaffe.__version__


def test_help_lists_every_command() -> None:
    lines = make_parser().format_help().splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert sorted(name for name in listed if name in COMMANDS) == sorted(COMMANDS)


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


@pytest.mark.parametrize("words", [["test", "--weights=w.caffemodel"], ["time"], ["summary"],
                                   ["draw", "out.dot"], ["export", "--onnx=out.onnx"]])  # fmt: skip
def test_a_net_is_named_with_or_without_an_option(cli: Cli, words: list[str]) -> None:
    named = cli.fails(*words[:1], "--model=none.prototxt", *words[1:])
    alone = cli.fails(*words[:1], "none.prototxt", *words[1:])
    assert named.err.splitlines()[-1] == alone.err.splitlines()[-1]
    assert "none.prototxt" in alone.err or "w.caffemodel" in alone.err
    assert "one of the arguments NET --model is required" in cli(*words).err or words[0] == "draw"
