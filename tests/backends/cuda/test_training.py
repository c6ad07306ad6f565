"""Training on a GPU against training on the CPU, and as graphs against step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers import Solver

pytestmark = pytest.mark.gpu

NET = """
layer { name: "in" type: "Input" top: "x" top: "label"
  input_param { shape { dim: 4 dim: 3 dim: 16 dim: 16 } shape { dim: 4 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm"
  lrn_param { local_size: 5 alpha: 0.1 beta: 0.75 } }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool"
  pooling_param { kernel_size: 3 stride: 2 } }
layer { name: "left" type: "Convolution" bottom: "pool" top: "left"
  convolution_param { num_output: 8 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "relu_l" type: "ReLU" bottom: "left" top: "left" }
layer { name: "right" type: "Convolution" bottom: "pool" top: "right"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu_r" type: "ReLU" bottom: "right" top: "right" }
layer { name: "both" type: "Concat" bottom: "left" bottom: "right" top: "both" }
layer { name: "pool2" type: "Pooling" bottom: "both" top: "pool2"
  pooling_param { pool: AVE kernel_size: 3 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool2" top: "ip"
  inner_product_param { num_output: 32 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "ip" top: "ip" }
layer { name: "drop" type: "Dropout" bottom: "ip" top: "ip" }
layer { name: "score" type: "InnerProduct" bottom: "ip" top: "score"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""

SETTINGS = 'base_lr: 0.01 lr_policy: "inv" gamma: 0.1 power: 0.5 max_iter: 100 random_seed: 3 '


def gpu(precision: str = "fp32") -> Any:
    from osucaffe.backends.cuda import Cuda

    return Cuda(precision=precision)


def make_solver(backend: Any, settings: str = "momentum: 0.9") -> Solver:
    """A solver whose net has its one batch."""
    param = parse_text(f"{SETTINGS} {settings} net_param {{ {NET} }}", SolverParameter)
    solver = Solver(param, backend)
    generator = np.random.default_rng(5)
    solver.net.write("x", generator.standard_normal((4, 3, 16, 16)).astype(np.float32))
    solver.net.write("label", generator.integers(10, size=4).astype(np.float32))
    return solver


def train(backend: Any, settings: str, iterations: int = 4) -> tuple[list[np.ndarray], float]:
    """The parameters and the loss after some iterations with one batch."""
    solver = make_solver(backend, settings)
    solver.step(iterations)
    values = [backend.read(parameter.blob.data) for parameter in solver.net.parameters]
    return values, solver.net.loss()


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("settings", ["momentum: 0.9", "iter_size: 2 clip_gradients: 0.5"])
def test_a_graph_computes_the_same_bits_as_single_steps(precision: str, settings: str) -> None:
    backend = gpu(precision)  # one, so that both take the same plans of cuDNN and cuBLAS
    graph, loss = train(backend, settings, 6)
    backend.graphs = False
    steps, same_loss = train(backend, settings, 6)
    assert loss == same_loss
    np.testing.assert_equal(graph, steps)


@pytest.mark.parametrize(
    "settings",
    [
        "momentum: 0.9 weight_decay: 0.01",
        'type: "Nesterov" momentum: 0.9 regularization_type: "L1" weight_decay: 0.001',
        'type: "AdaGrad" delta: 0.01',
        'type: "RMSProp" rms_decay: 0.9 delta: 0.01',
        'type: "AdaDelta" momentum: 0.9 delta: 0.01',
        'type: "Adam" momentum: 0.9 momentum2: 0.99 delta: 0.01',
        'type: "LAMB" momentum: 0.9 momentum2: 0.99 delta: 0.01 weight_decay: 0.1',
        "iter_size: 3 clip_gradients: 0.5",
    ],
)
def test_every_solver_learns_as_on_the_cpu(settings: str) -> None:
    wanted, loss = train(Cpu(), settings)
    found, same_loss = train(gpu(), settings)
    assert same_loss == pytest.approx(loss, rel=1e-4)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4 * np.abs(other).max())


@pytest.mark.parametrize(("precision", "bound"), [("tf32", 2e-3), ("fp16", 5e-3), ("bf16", 3e-2)])
def test_lower_precisions_learn_nearly_the_same(precision: str, bound: float) -> None:
    """The bound is on the change of the parameters that training makes, as a whole."""
    start, _ = train(Cpu(), "momentum: 0.9", 0)
    wanted, loss = train(Cpu(), "momentum: 0.9")
    found, near = train(gpu(precision), "momentum: 0.9")
    assert near == pytest.approx(loss, rel=bound)
    change = np.concatenate([(a - b).ravel() for a, b in zip(wanted, start, strict=True)])
    error = np.concatenate([(a - b).ravel() for a, b in zip(found, wanted, strict=True)])
    assert np.linalg.norm(error) <= 3 * bound * np.linalg.norm(change)
