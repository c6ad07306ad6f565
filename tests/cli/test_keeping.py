"""Tests of what training keeps, with the real program."""

from __future__ import annotations

import shlex

from .conftest import Cli


def test_the_best_model_and_the_newest_snapshot(cli: Cli) -> None:
    cli.write_net()
    cli.write_solver("test_interval: 2\nsnapshot: 2")
    words = ["train", "--solver", "solver.prototxt", "--keep", "1", "--best", "accuracy"]
    done = cli(*words, "--max_iter", "8")
    assert done.code == 0, done.err
    found = sorted(path.name for path in cli.folder.glob("run_*"))
    assert found == [
        *("run_best.caffemodel", "run_best.json"),
        *("run_iter_8.caffemodel", "run_iter_8.solverstate"),
    ]
    assert "Best accuracy so far" in done.err


def test_training_ends_where_nothing_gets_better(cli: Cli) -> None:
    """With a learning rate of 0 nothing does; that is no error."""
    cli.write_net()
    cli.write_solver("test_interval: 1\nbase_lr: 0\ntest_iter: 25")
    words = ["train", "--solver", "solver.prototxt", "--best", "accuracy", "--patience", "2"]
    done = cli(*words)
    assert done.code == 0, done.err
    assert "accuracy was no better in 2 tests in a row: training ends" in done.err
    assert (cli.folder / "run_iter_3.solverstate").exists()
    missing = cli("train", "--solver", "solver.prototxt", "--patience", "2")
    assert missing.code == 1
    assert "--patience needs --best" in missing.err


def test_a_stopped_run_says_how_to_go_on(cli: Cli) -> None:
    """A Python layer interrupts its own process: no time is involved."""
    cli.write(
        "stopper.py",
        "import os, signal, caffe\n"
        "class Stopper(caffe.Layer):\n"
        "    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(1)\n"
        "    def forward(self, bottom, top):\n"
        "        if not os.path.exists('stopped'):\n"
        "            open('stopped', 'w').close()\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "    def backward(self, *arguments): pass\n",
    )
    net = cli.folder / cli.write_net()
    layer = (
        'layer { name: "stop" type: "Python" top: "stop" include { phase: TRAIN }\n'
        'python_param { module: "stopper" layer: "Stopper" } }\n'
        'layer { name: "silence" type: "Silence" bottom: "stop" include { phase: TRAIN } }\n'
    )
    net.write_text(net.read_text() + layer)
    cli.write_solver("test_interval: 100\ntest_initialization: false")
    done = cli(
        "train",
        "-solver=solver.prototxt",
        PYTHONPATH=f"{cli.folder}:{cli.environment()['PYTHONPATH']}",
    )
    assert done.code == 130, done.err
    line = next(line for line in done.err.splitlines() if "Go on with: " in line)
    command = shlex.split(line.partition("Go on with: ")[2])
    assert command == [
        "osucaffe",
        "train",
        "-solver=solver.prototxt",
        "--snapshot=run_iter_1.solverstate",
    ]
    more = cli(*command[1:], PYTHONPATH=f"{cli.folder}:{cli.environment()['PYTHONPATH']}")
    assert more.code == 0, more.err
    assert "Optimization Done." in more.err
