"""The arena: what learns lies together, in backward order, and training does not see where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers import Solver

NORMALIZED = """
layer {{ name: "norm{n}" type: "BatchNorm" bottom: "{bottom}" top: "norm{n}" }}
layer {{ name: "scale{n}" type: "Scale" bottom: "norm{n}" top: "norm{n}"
  scale_param {{ bias_term: true }} }}
layer {{ name: "ip{n}" type: "InnerProduct" bottom: "norm{n}" top: "ip{n}"
  inner_product_param {{ num_output: 20 weight_filler {{ type: "xavier" }} }} }}
"""


def make(folder: Path) -> Solver:
    net = """layer { name: "x" type: "DummyData" top: "x" top: "y"
      dummy_data_param { shape { dim: 6 dim: 20 } shape { dim: 6 dim: 20 }
        data_filler { type: "gaussian" } data_filler { type: "gaussian" } } }"""
    for n, bottom in enumerate(["x", "ip0", "ip1"]):
        net += NORMALIZED.format(n=n, bottom=bottom)
    net += 'layer { name: "loss" type: "EuclideanLoss" bottom: "ip2" bottom: "y" top: "loss" }'
    settings = f"""type: "Adam" base_lr: 0.01 lr_policy: "fixed" random_seed: 7 max_iter: 9
      snapshot_prefix: "{folder}/run" net_param {{ {net} }}"""
    return Solver(parse_text(settings, SolverParameter), Cpu(threads=1, onednn=False))


def values(solver: Solver) -> list[np.ndarray]:
    """All parameters, in the net's order, and all history."""
    read = solver.backend.read
    return [*(read(p.blob.data) for p in solver.net.parameters), *solver.optimizer.read_history()]


def test_what_does_not_learn_lies_behind(tmp_path: Path) -> None:
    arena = make(tmp_path).net.arena
    names = [parameter.name for _, _, parameter in arena.segments]
    assert names[:4] == ["ip2/1", "ip2/0", "scale2/1", "scale2/0"]
    assert names[12:15] == ["norm2/2", "norm2/1", "norm2/0"]
    assert arena.segments[11][1] == arena.learned
    assert len(arena) - arena.learned == 9 * 32 - 3 * 16


def test_training_and_snapshots_do_not_see_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as with the statistics between the weights; a snapshot goes over to there."""

    def as_they_come(parameters: Any, key: Any) -> Any:
        return list(parameters)

    apart = make(tmp_path)
    apart.step(3)
    apart.snapshot()
    apart.step(3)
    monkeypatch.setattr("osucaffe.arena.sorted", as_they_come, raising=False)
    whole, resumed = make(tmp_path), make(tmp_path)
    assert whole.net.arena.segments[4][2].name == "norm2/2"
    whole.step(6)
    resumed.restore(tmp_path / "run_iter_3.solverstate")
    resumed.step(3)
    for one, other, third in zip(values(apart), values(whole), values(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)
