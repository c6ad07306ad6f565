"""The sums of a test's outputs are those of outputs that are read batch by batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.solvers import testing
from osucaffe.solvers.observer import Observer, TestResult
from osucaffe.solvers.report import read_outputs

from .runs import solver
from .snapshots.test_resume import LMDB_NET, settings


class Results(Observer):
    def __init__(self) -> None:
        self.found: list[list[float]] = []

    def on_test(self, event: TestResult) -> None:
        self.found.append([each.value for each in event.outputs])


def test_sums_are_those_of_outputs_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = [], Cpu.read
    monkeypatch.setattr(
        Cpu, "read", lambda self, tensor: (reads.append(tensor.name), read(self, tensor))[1]
    )
    found = []
    for rows in 0, 3, 128:
        monkeypatch.setattr(testing, "_ROWS", rows)
        results = Results()
        text = settings(tmp_path, more="test_iter: 7 test_interval: 4 test_compute_loss: true")
        run = solver(text, LMDB_NET, observers=[results])
        reads.clear()
        run.step(10)
        found.append(results.found)
        assert reads.count("outputs") == {0: 0, 3: 9, 128: 3}[rows]
    assert np.isfinite(found[0]).all()
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 3


def test_rows_that_hold_no_outputs_are_not_converted(tmp_path: Path) -> None:
    run = solver(settings(tmp_path, more="test_iter: 7 test_interval: 4"), LMDB_NET)
    run.step(1)
    kept = testing.OutputBuffer(run.test_nets[0])
    signaling = 0x7FA00000  # a NaN whose conversion NumPy warns of
    for tensor in kept._buffers:
        tensor.array.reshape(-1).view(np.uint32)[:] = signaling
    run.test_nets[0].forward()
    kept.note()
    with np.errstate(all="raise"):
        assert np.isfinite(kept.take()).all()


@pytest.mark.parametrize("rows", [0, 3])
def test_the_loss_stands_behind_the_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(testing, "_ROWS", rows)
    net = solver(settings(tmp_path, more="test_iter: 7 test_interval: 4"), LMDB_NET).test_nets[0]
    kept = testing.OutputBuffer(net, loss=True)
    expected = []
    for _ in range(3):
        assert not kept.full
        net.forward()
        kept.note()
        expected.append([*read_outputs(net), net.loss()])
    assert kept.full == bool(rows)
    found = kept.take()
    assert found.tolist() == expected
    assert found.shape == (3, kept.width)
    assert found[:, -1].all()
    assert not len(kept.take())
