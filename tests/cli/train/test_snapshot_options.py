"""What a training run keeps: newest snapshots, the best model; its ends; `snapshot verify`."""

from __future__ import annotations

import json
import re
import shlex
import signal

import pytest

from osucaffe.cli.train.snapshot_options import resuming
from tests.comm.ranks import needs_mpi

from ..conftest import Cli

TRAIN = "train", "--solver=solver.prototxt"


@pytest.fixture
def ready(cli: Cli) -> Cli:
    cli.write_net()
    cli.write_solver("test_interval: 2\nsnapshot: 2")
    return cli


def spoil(cli: Cli) -> None:
    """A solver that gets nowhere, for ever."""
    cli.write_solver("test_interval: 2\nbase_lr: 0\nmax_iter: 100000")


def snapshots(cli: Cli) -> list[int]:
    """The iterations of which both files are there."""
    states = {int(re.findall(r"\d+", p.name)[0]) for p in cli.folder.glob("run_iter_*.solverstate")}
    models = {int(re.findall(r"\d+", p.name)[0]) for p in cli.folder.glob("run_iter_*.caffemodel")}
    assert states == models
    return sorted(states)


def best(cli: Cli) -> dict[str, object]:
    note: dict[str, object] = json.loads((cli.folder / "run_best.json").read_text())
    return note


def accuracies(log: str) -> dict[int, float]:
    """The accuracy of each test that a log tells."""
    found = re.findall(r"Iteration (\d+), Testing net.*?accuracy = (\S+)", log, re.DOTALL)
    return {int(iteration): float(value) for iteration, value in found}


def test_only_the_newest_snapshots_of_this_run_stay(ready: Cli) -> None:
    (ready.folder / "run_iter_99.solverstate").write_text("of another run")
    (ready.folder / "run_iter_99.caffemodel").write_text("of another run")
    result = ready.ok(*TRAIN, "--keep=2")
    assert snapshots(ready) == [8, 10, 99]
    assert "Deleted run_iter_2.solverstate and its model: --keep 2" in result.err
    result = ready.ok(*TRAIN, "--keep=2", "--max_iter=12", "--snapshot=run_iter_10.solverstate")
    assert snapshots(ready) == [10, 12, 99]  # those that it had made before are its own


def test_the_best_model_is_kept(ready: Cli) -> None:
    result = ready.ok(*TRAIN, "--best=accuracy")
    told = accuracies(result.err)
    assert best(ready)["value"] == pytest.approx(max(told.values()), rel=1e-4)
    first = min(each for each, value in told.items() if value == max(told.values()))
    assert best(ready) | {"value": 0} == {"output": "accuracy", "value": 0, "iteration": first}
    # The file has the weights of that iteration.
    if first:
        snapshot = (ready.folder / f"run_iter_{first}.caffemodel").read_bytes()
        assert (ready.folder / "run_best.caffemodel").read_bytes() == snapshot
    # A run that goes on does not take a worse one for better; a new run begins anew.
    note = json.dumps(best(ready) | {"value": 2.0})
    (ready.folder / "run_best.json").write_text(note)
    ready.ok(*TRAIN, "--best=accuracy", "--max_iter=14", "--snapshot=auto")
    assert best(ready)["value"] == 2.0
    ready.ok(*TRAIN, "--best=accuracy")
    assert best(ready)["value"] != 2.0


def test_of_losses_the_least_is_best(ready: Cli) -> None:
    result = ready.ok(*TRAIN, "--best=loss", "--max_iter=4")
    told = [float(each) for each in re.findall(r"Test net output #1: loss = (\S+)", result.err)]
    assert best(ready)["value"] == pytest.approx(min(told), rel=1e-4)


def test_patience_ends_a_run_that_gets_no_better(ready: Cli) -> None:
    spoil(ready)
    result = ready.ok(*TRAIN, "--best=accuracy", "--patience=3")
    assert re.search(r"Stopping: 3 tests without a better accuracy than \S+ at", result.err)
    assert "Optimization stopped early." in result.err
    assert "To go on" not in result.err
    assert len(snapshots(ready)) == 1


@needs_mpi
def test_ranks_end_together(ready: Cli) -> None:
    spoil(ready)
    ready.ok(*TRAIN, "--best=accuracy", "--patience=2", "--ranks=2", "--keep=1")
    assert len(snapshots(ready)) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--best=acuracy"], "--best acuracy: no test net has such an output (did you mean acc"),
        (["--patience=2"], "--patience counts tests without a better value: give --best"),
    ],
)
def test_options_that_cannot_be(ready: Cli, options: list[str], words: str) -> None:
    assert f"osucaffe: {words}" in ready.fails(*TRAIN, *options).err


def test_a_run_that_was_stopped_tells_how_it_goes_on(ready: Cli) -> None:
    program = ready.train_without_end(*TRAIN, "--keep", "1")
    program.send_signal(signal.SIGINT)
    log = program.communicate(timeout=300)[1]
    [(iteration, again)] = re.findall(r"To resume from iteration (\d+): (.*)", log)
    assert again == "osucaffe train --solver=solver.prototxt --keep 1 --snapshot=auto"
    words = [*shlex.split(again)[1:], f"--max_iter={int(iteration) + 3}"]
    result = ready.ok(*words)
    assert f"Restoring previous solver status from run_iter_{iteration}.solverstate" in result.err


def test_the_command_that_goes_on() -> None:
    words = ["train", "-solver", "a b", "--weights", "x", "--weights=y", "--snapshot", "z"]
    assert resuming(words) == ["train", "-solver", "a b", "--snapshot=auto"]
    assert resuming(["train", "--snapshot=x"]) == ["train", "--snapshot=auto"]


def test_verify_tells_which_files_are_good(cli: Cli, fixtures) -> None:
    cli.write_net()
    cli.write_solver("snapshot: 5")
    cli.ok("train", "--solver=solver.prototxt")
    done = cli("snapshot", "verify", "run_iter_5.solverstate", "run_iter_10.caffemodel")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "run_iter_5.solverstate: good: iteration 5, its model run_iter_5.caffemodel\n"
        "run_iter_10.caffemodel: good: weights of 1 layer\n"
    )

    model = cli.folder / "run_iter_5.caffemodel"
    model.write_bytes(model.read_bytes()[:-1])
    done = cli("snapshot", "verify", "run_iter_5.solverstate")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("osucaffe: run_iter_5.caffemodel: damaged or cut short")
    theirs = str(fixtures / "formats" / "h5lenet_iter_200.solverstate.h5")
    done = cli("snapshot", "verify", "none", "run_iter_5.solverstate", theirs)
    assert (done.code, done.err) == (1, "osucaffe: 2 of 3 files are bad\n")
    first, second, third = done.out.splitlines()
    assert first.startswith("none: cannot read it")
    assert second.startswith("run_iter_5.caffemodel: damaged")
    assert f"{theirs}: good as far as one can tell (no checksum): iteration 200" in third
