"""Graphs that were captured, and then their memory moved: because another net made the pool grow
that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from osucaffe.net import Net
from osucaffe.proto import SolverParameter, parse_text
from osucaffe.solvers import Solver

from .emulated import needs_compilers
from .graphs import emulate_graphs

SIZE = 6
NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 2 dim: 6 dim: 6 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 2 } } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "score" type: "InnerProduct" bottom: "pool" top: "score"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""
SETTINGS = 'base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: 100 random_seed: 3'
PATTERN = 0x7B


class Training:
    """A net that is trained, and others that share its pool."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        param = parse_text(f"{SETTINGS} net_param {{ {NET} }}", SolverParameter)
        self.solver = Solver(param, backend)
        self.net = self.solver.net
        self.given_up: list[Any] = []
        """Memory that nets had, and that others may have now."""
        self.give(self.net)

    def give(self, net: Net) -> None:
        """Inputs of whatever size."""
        values = np.random.default_rng(5).standard_normal(net.blobs["x"].shape)
        net.write("x", values.astype(np.float32))
        net.write("label", np.array([2, 1], np.float32))

    def test_net(self, size: int) -> Net:
        param, shares = self.solver.param.net_param, self.net
        net = Net(param, phase="TEST", backend=self.backend, share=shares, seed=1)
        self.reshape(net, size)
        return net

    def reshape(self, net: Net, size: int) -> None:
        net.reshape({"x": (2, 2, size, size)})
        self.give(net)

    def growing(self, change: Callable[[], Any]) -> Any:
        """What this returns, after which the pool has grown; the old one holds a pattern."""
        pool = self.net.pool
        before, size = pool._memory, pool.size
        made = change()
        assert pool.size > size
        before[:] = PATTERN
        self.given_up.append(before)
        self.give(self.net)
        return made

    def check(self) -> None:
        """Nothing may have been written to what was given up."""
        self.backend.synchronize()
        for memory in self.given_up:
            assert (memory == PATTERN).all()

    def parameters(self) -> list[np.ndarray]:
        return [self.backend.read(each.blob.data) for each in self.net.parameters]


def train_and_test(backend: Any) -> None:
    """Training as if there were no other nets, and these as if they were alone."""
    alone = Training(backend)
    alone.solver.step(9)

    both = Training(backend)
    both.solver.step(3)
    small = both.test_net(SIZE)
    test = small.as_step(backward=False)
    for _ in range(3):
        test()
    loss = small.loss()
    # One that is reshaped, as it may be between two iterations, and whose graph is kept.
    both.growing(lambda: both.reshape(small, 3 * SIZE))
    for _ in range(3):
        test()
    large_loss = small.loss()
    both.give(both.net)
    both.solver.step(3)
    both.check()
    both.reshape(small, SIZE)
    # One that is built later.
    other = both.growing(lambda: both.test_net(4 * SIZE))
    both.give(both.net)
    both.solver.step(3)
    both.check()
    np.testing.assert_equal(both.parameters(), alone.parameters())

    weights = both.net.to_proto()
    for net, size in (small, SIZE), (other, 4 * SIZE):
        fresh = Training(backend)
        fresh.net.load(weights)
        wanted = fresh.test_net(size)
        wanted.forward()
        step = test if net is small else other.as_step(backward=False)
        for _ in range(3):
            both.give(net)
            step()
            assert net.loss() == wanted.loss()
    both.check()
    assert len({loss, large_loss, small.loss(), other.loss()}) == 4


@needs_compilers
@pytest.mark.parametrize("precision", ["bf16", pytest.param("tf32", marks=pytest.mark.long)])
def test_emulated_graphs(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    train_and_test(emulate_graphs(monkeypatch, precision))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_graphs(precision: str) -> None:
    from osucaffe.backends.cuda import Cuda

    train_and_test(Cuda(precision=precision))
