"""Small training runs that the tests of the solvers share."""

from __future__ import annotations

from typing import Any

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver

TYPES = {
    "SGD": "momentum: 0.9",
    "Nesterov": "momentum: 0.9",
    "AdaGrad": "",
    "RMSProp": "rms_decay: 0.9",
    "AdaDelta": "momentum: 0.95 delta: 1e-6",
    "Adam": "momentum: 0.9 momentum2: 0.999",
    "LAMB": "momentum: 0.9 momentum2: 0.999 delta: 1e-6",
}
"""Each solver type with fields that suit it."""

NET = """
name: "tiny"
layer { name: "data" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 8 dim: 1 dim: 6 dim: 6 } shape { dim: 8 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv" param { lr_mult: 1 }
  param { lr_mult: 2 decay_mult: 0 } convolution_param { num_output: 4 kernel_size: 3
  weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "score"
  inner_product_param { num_output: 10 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""


REGRESSION = """
name: "tiny"
layer { name: "data" type: "DummyData" top: "x" top: "y" dummy_data_param {
  shape { dim: 4 dim: 5 } shape { dim: 4 dim: 2 }
  data_filler { type: "gaussian" } data_filler { type: "gaussian" } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "z"
  inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "z" bottom: "y" top: "loss" }
"""


class Unclean(Cpu):
    """Its memory is full of NaN at first: who reads what nobody wrote is found out."""

    def allocate(self, nbytes: int) -> np.ndarray:
        memory = super().allocate(nbytes)
        memory.fill(0xFF)
        return memory


DEFAULTS = 'base_lr: 0.05 lr_policy: "fixed" random_seed: 7 snapshot_after_train: false'


def solver(settings: str, net: str = NET, **options: Any) -> Solver:
    """A solver on the CPU: `settings` and a net, both as prototxt text."""
    param = parse_text(DEFAULTS, SolverParameter)
    param.MergeFrom(parse_text(settings, SolverParameter))
    if net:
        param.net_param.CopyFrom(parse_text(net, NetParameter))
    return Solver(param, Unclean(threads=1), file="solver.prototxt", **options)


def parameters(run: Solver) -> dict[str, np.ndarray]:
    """Every parameter, by layer and index."""
    return {
        f"{each.layer}:{each.index}": run.backend.read(each.blob.data)
        for each in run.net.parameters
    }


def assert_same(run: Solver, other: Solver) -> None:
    """Both stand at the same point, bit for bit."""
    assert run.iteration == other.iteration
    values, others = parameters(run), parameters(other)
    for name, value in values.items():
        assert np.isfinite(value).all(), name
        np.testing.assert_array_equal(value, others[name], err_msg=name)
    np.testing.assert_equal(run.optimizer.read_history(), other.optimizer.read_history())
