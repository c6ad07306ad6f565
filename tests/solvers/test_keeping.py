"""Tests of what a run keeps: the best model, so many snapshots; and when it ends of itself."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.cli.keeping import go_on
from osucaffe.errors import UserError
from osucaffe.proto import NetParameter, SolverParameter
from osucaffe.solvers.keeping import Keeping
from osucaffe.solvers.observer import Output, Snapshot, TestResult
from osucaffe.solvers.signals import NONE, SNAPSHOT, STOP


class TestNet:
    __test__ = False
    outputs = ("accuracy", "loss")

    def loss_weight(self, name: str) -> float:
        return float(name == "loss")


class Trained:
    def to_proto(self) -> NetParameter:
        return NetParameter(name="trained")


def watched(folder: Path, *, iteration: int = 0, asked: str = NONE, **settings: Any) -> Keeping:
    keeping = Keeping(lambda: asked, **settings)
    param = SolverParameter(snapshot_prefix=str(folder / "run"))
    solver: Any = SimpleNamespace(
        param=param, file="s", iteration=iteration, net=Trained(), test_nets=[TestNet(), TestNet()]
    )
    keeping.begin(solver)
    return keeping


def tell(keeping: Keeping, iteration: int, accuracy: float, loss: float = 1.0) -> None:
    outputs = [Output(0, "accuracy", accuracy), Output(1, "loss", loss, 1.0)]
    for net in 0, 1:
        keeping.on_test(TestResult(iteration, net, outputs))


def snapshots(folder: Path, keeping: Keeping, *iterations: int) -> list[str]:
    for iteration in iterations:
        stem = folder / f"run_iter_{iteration}"
        files = Snapshot(iteration, f"{stem}.caffemodel", f"{stem}.solverstate")
        Path(files.model).touch()
        Path(files.state).touch()
        keeping.on_snapshot(files)
    return sorted(path.name for path in folder.glob("run_iter_*"))


def names(*iterations: int) -> list[str]:
    ends = ("caffemodel", "solverstate")
    return sorted(f"run_iter_{iteration}.{end}" for iteration in iterations for end in ends)


@pytest.mark.parametrize(
    ("output", "values", "best"),
    [("accuracy", [0.1, 0.5, 0.3], 0.5), ("loss", [3.0, 1.0, 2.0], 1.0)],
)
def test_the_best_model_is_kept(
    tmp_path: Path, output: str, values: list[float], best: float
) -> None:
    keeping = watched(tmp_path, best=output)
    for iteration, value in enumerate(values):
        tell(keeping, iteration, value, value)
    assert (tmp_path / "run_best.caffemodel").stat().st_size
    found = json.loads((tmp_path / "run_best.json").read_text())
    assert found == {"output": output, "value": best, "iteration": 1}


def test_a_run_that_goes_on_knows_the_best(tmp_path: Path) -> None:
    tell(watched(tmp_path, best="accuracy"), 5, 0.5)
    (tmp_path / "run_best.caffemodel").unlink()
    tell(watched(tmp_path, iteration=6, best="accuracy"), 10, 0.4)
    assert not (tmp_path / "run_best.caffemodel").exists()
    tell(watched(tmp_path, best="accuracy"), 10, 0.4)  # another run
    assert (tmp_path / "run_best.caffemodel").exists()


def test_patience(tmp_path: Path) -> None:
    keeping = watched(tmp_path, best="accuracy", patience=2)
    for value, request in (0.5, NONE), (float("nan"), NONE), (0.6, NONE), (0.6, NONE), (0.2, STOP):
        tell(keeping, 1, value)
        assert keeping.request() == request
    assert watched(tmp_path, asked=SNAPSHOT).request() == SNAPSHOT


def test_so_many_snapshots_are_kept(tmp_path: Path) -> None:
    assert snapshots(tmp_path, watched(tmp_path, count=2), 1, 2, 3, 3) == names(2, 3)
    again = watched(tmp_path, iteration=3, count=2)
    assert snapshots(tmp_path, again, 4) == names(3, 4)
    assert len(snapshots(tmp_path, watched(tmp_path, count=2), 5)) == 6  # those of another run stay
    assert len(snapshots(tmp_path, watched(tmp_path, iteration=5), 6, 7)) == 10


def test_an_output_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="s: no test net has an output top5: they have accuracy"):
        watched(tmp_path, best="top5")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--solver", "my s.prototxt", "--weights", "a,b"],
        ["train", "--solver", "my s.prototxt", "-snapshot=auto"],
        ["train", "--solver", "my s.prototxt"],
    ],
)
def test_how_to_go_on(words: list[str]) -> None:
    assert go_on(words, "run_iter_7.solverstate") == (
        "osucaffe train --solver 'my s.prototxt' --snapshot=run_iter_7.solverstate"
    )
