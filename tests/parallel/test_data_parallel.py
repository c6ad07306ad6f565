"""The end of data-parallel training: what lives then."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import find_job
from osucaffe.comm.job.topology import discover
from osucaffe.net import Net
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers import Solver

SOLVER = """base_lr: 0.1 lr_policy: "fixed" net_param {
  layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }
  layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param {
    num_output: 2 } }
  layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "ip" top: "loss" } }
"""


def test_captured_passes_go_before_the_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's waits at its end for the CUDA graphs that hold its operations."""
    passes: list[weakref.ref[Any]] = []
    real = Net.as_step

    def as_step(net: Net, **given: Any) -> Any:
        made = real(net, **given)
        passes.append(weakref.ref(made))
        return made

    monkeypatch.setattr(Net, "as_step", as_step)
    job = find_job()
    group = DataParallel(job, discover(job), CommConfig(), ParallelConfig("layerwise"))
    solver = Solver(parse_text(SOLVER, SolverParameter), Cpu(threads=1), group=group)
    solver.step(2)
    alive = []
    monkeypatch.setattr(
        group.comm, "close", lambda: alive.extend(filter(None, (p() for p in passes)))
    )
    solver.close()
    assert passes
    assert not alive
