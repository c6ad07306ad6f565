"""`oc.train` and its Run: the command in a process of its own, its history and its errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import osucaffe as oc
from osucaffe.api import run as module

TINY = """
layer { name: "d" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 8 dim: 3 } shape { dim: 8 } data_filler { type: "gaussian" } data_filler {} } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
  include { phase: TEST } }
"""


@pytest.fixture
def solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(root))
    (tmp_path / "net.prototxt").write_text(TINY)
    path = tmp_path / "solver.prototxt"
    path.write_text(
        'net: "net.prototxt" base_lr: 0.5 lr_policy: "fixed" display: 10 max_iter: 40 '
        'test_iter: 2 test_interval: 20 snapshot_prefix: "run" random_seed: 1'
    )
    return path


@pytest.mark.long
def test_a_run_has_its_history_and_its_model(solver: Path) -> None:
    run = oc.train(solver)
    rows = run.history
    assert [row["iteration"] for row in rows] == [0, 10, 20, 30, 40]
    assert rows[0].keys() == {
        *("iteration", "seconds", "lr", "loss", "test accuracy", "test loss"),
    }
    assert rows[-1]["test accuracy"] == 1
    assert run.best == "run_iter_40.caffemodel"
    assert "Optimization Done." in run.log
    assert repr(run).startswith(f"Run of {solver}: iteration 40, ")
    assert "<table>" in run._repr_html_()
    assert "<polyline" in run.plot()._repr_html_()
    weights = oc.Net(TINY, run.best, phase="TRAIN", threads=1).params["ip"].weight
    assert np.abs(weights).sum() > 0


def test_the_message_of_a_failed_command_is_that_of_the_error(
    solver: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(oc.UserError, match=r"none\.prototxt: cannot read it"):
        oc.train("none.prototxt", progress=True)
    assert "\rnone" in capsys.readouterr().err.replace("osucaffe: ", "")
    assert "--solver=none.prototxt" in oc.Run(solver).log
    assert oc.Run(solver).history == []
    assert oc.Run(solver, "nowhere").log == ""
    with pytest.raises(oc.UserError, match="no model found for run"):
        _ = oc.Run(solver).best
    assert repr(oc.Run(solver)) == f"Run of {solver}: no log"


@pytest.mark.long
def test_an_interrupt_leaves_a_snapshot(solver: Path) -> None:
    """One of the whole group of processes, as terminals and notebooks send it."""
    script = "import osucaffe as oc; oc.train('solver.prototxt', max_iter=10**8)"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as process:
        while not any(row["iteration"] > 0 for row in oc.Run(solver).history):
            time.sleep(0.2)
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
    assert process.returncode == -signal.SIGINT
    assert len([*Path().glob("run_iter_*.solverstate")]) == 1


def test_options_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[str, dict[str, object]]] = []
    note = lambda name, *_, **options: given.append((name, options))  # noqa: E731
    monkeypatch.setattr(module, "command", note)
    monkeypatch.setattr(module, "load", Path)
    oc.train("a/solver.prototxt", ranks=4, gpu="all", best="accuracy")
    assert oc.fit("photos", "runs/a", weights="x.caffemodel", epochs=3) == Path("runs/a")
    fitted = {"out": "runs/a", "from": "x.caffemodel", "epochs": 3, "gpu": None, "progress": None}
    assert given.pop() == ("fit", fitted)
    assert given == [
        (
            "train",
            {
                "solver": "a/solver.prototxt",
                "ranks": 4,
                "gpu": "all",
                "best": "accuracy",
                "log_dir": Path("a/log"),
                "progress": None,
            },
        )
    ]


@pytest.mark.long
def test_a_report_and_a_prediction(solver: Path, root: Path) -> None:
    run = oc.train(solver)
    assert Path(run.report()).read_text().count("<svg") >= 2
    assert module.predict(solver, cluster=root / "clusters" / "dgx-h100.toml", ranks=[1, 2])
