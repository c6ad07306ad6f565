"""Snapshots are written beside training: one at a time, and what goes wrong is told."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.proto import SolverParameter, parse_text, read_weights
from osucaffe.solvers import Solver
from osucaffe.solvers.snapshots import snapshot
from osucaffe.solvers.snapshots.snapshot import SnapshotWriter

from ..runs import REGRESSION

SOLVER = f"""
net_param {{ {REGRESSION} }} base_lr: 0.1 lr_policy: "fixed" max_iter: 6 snapshot: 2 random_seed: 1
snapshot_prefix: "%s"
"""


def make(tmp_path: Path) -> Solver:
    return Solver(parse_text(SOLVER % (tmp_path / "run"), SolverParameter), Cpu())


def test_training_goes_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first snapshot is held back until two more iterations were made: it has none of them."""
    alone = make(tmp_path)
    alone.param.snapshot = 0
    alone.step(2)
    wanted = [alone.net.backend.read(each.blob.data) for each in alone.net.parameters]
    solver, go_on, plain = make(tmp_path), threading.Event(), snapshot.write
    held = []

    def write(files: object, *contents: object) -> None:
        held.append(go_on.wait(30))
        plain(files, *contents)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "write", write)
    told = []
    solver.param.snapshot = 0
    solver.step(2)
    monkeypatch.setattr(solver, "_tell_snapshot", told.append)
    caplog.set_level("INFO", "osucaffe")
    solver.snapshot(wait=False)
    assert not told
    lines = [record.getMessage().partition(str(tmp_path))[0] for record in caplog.records[-2:]]
    kinds = "to binary proto file ", "solver state to binary proto file "
    assert lines == [f"Snapshotting {kind}" for kind in kinds]
    solver.group.begin()
    for _ in range(2):
        solver._iterate()
    assert not (tmp_path / "run_iter_2.caffemodel").exists()
    go_on.set()
    solver._writer.wait()
    assert held == [True]
    assert [event.iteration for event in told] == [2]
    (layer,) = (each for each in read_weights(tmp_path / "run_iter_2.caffemodel").layer
                if each.name == "ip")  # fmt: skip
    for blob, values in zip(layer.blobs, wanted, strict=True):
        assert np.array_equal(np.array(blob.data, np.float32), values.ravel())


def test_all_are_whole_when_training_ends(tmp_path: Path) -> None:
    make(tmp_path).solve()
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == sorted(
        f"run_iter_{i}.{kind}" for i in (2, 4, 6) for kind in ("caffemodel", "solverstate")
    )


def test_what_goes_wrong_ends_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise UserError("no space left")

    monkeypatch.setattr(snapshot, "write", write)
    solver = make(tmp_path)
    with pytest.raises(UserError, match="no space left"):
        solver.solve()
    assert solver.iteration <= 4


def test_one_at_a_time() -> None:
    writer, first, seen = SnapshotWriter(), threading.Event(), []
    writer.start(lambda: seen.append(first.wait(30)), lambda: seen.append("told"))
    writer.look()  # it is not done: nothing is told
    assert not seen
    first.set()
    writer.start(lambda: seen.append("second"), lambda: None)
    assert seen[:2] == [True, "told"]
    writer.wait()
    assert seen[2:] == ["second"]
