"""What a GPU keeps for nets beyond their own memory: as long as they live, and where updates find
it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.net import Net
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver

from .emulated import emulate, needs_compilers

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 80 dim: 2 dim: 2 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 2 dim: 2 dim: 2 } } }
layer { name: "a" type: "Convolution" bottom: "x" top: "a"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "b" type: "Convolution" bottom: "x" top: "b"
  convolution_param { num_output: 16 kernel_size: 1 weight_filler { type: "xavier" } } }
layer { name: "both" type: "Concat" bottom: "a" bottom: "b" top: "both" }
layer { name: "drop" type: "Dropout" bottom: "both" top: "both" }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "both" bottom: "label" top: "loss" }
"""
SETTINGS = 'base_lr: 1 lr_policy: "fixed" max_iter: 100 random_seed: 3'


def solve(backend: Any) -> Solver:
    param = parse_text(f"{SETTINGS} net_param {{ {NET} }}", SolverParameter)
    solver = Solver(param, backend)
    values = np.random.default_rng(5).standard_normal((2, 80, 2, 2))
    solver.net.write("x", values.astype(np.float32))
    solver.net.write("label", np.arange(8, dtype=np.float32).reshape(2, 2, 2))
    solver.step(2)
    return solver


def check_nothing_stays(backend: Any) -> None:
    """Of a net that was dropped, 16-bit copies, tables and counters go, too."""

    def trained() -> list[weakref.ref[Any]]:
        solver = solve(backend)
        copies = [*backend._copies.values(), *backend._copied_arenas.values()]
        assert len(copies) > 2
        kept = [*copies, *backend._counters.values(), solver.net.arena.data]
        return [weakref.ref(each) for each in kept]

    left = trained()
    backend.random = type(backend.random)()
    gc.collect()
    assert [each() for each in left if each() is not None] == []
    assert not backend._copies


@needs_compilers
def test_nothing_stays_of_a_net(monkeypatch: pytest.MonkeyPatch) -> None:
    check_nothing_stays(emulate(monkeypatch, "bf16"))


@pytest.mark.gpu
def test_nothing_stays_of_a_net_on_a_gpu() -> None:
    backend = Cuda(precision="bf16")
    check_nothing_stays(backend)
    before = backend.cupy.get_default_memory_pool().used_bytes()
    check_nothing_stays(backend)
    assert backend.cupy.get_default_memory_pool().used_bytes() == before


def check_later_copies(backend: Any) -> None:
    """A net that is built later, and needs copies that the trained one has in one piece (it joins
    siblings), computes with the weights of the last update."""
    solver = solve(backend)
    param = parse_text(NET, NetParameter)
    shares = {"phase": "TEST", "backend": backend, "seed": 1}
    later = Net(param, share=solver.net, inspectable=True, **shares)
    solver.step(2)
    fresh = Net(param, inspectable=True, **shares)
    fresh.load(solver.net.to_proto())
    for net in later, fresh:
        net.write("x", solver.net.read("x"))
        net.forward()
    np.testing.assert_array_equal(later.read("both"), fresh.read("both"))


@needs_compilers
def test_later_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    check_later_copies(emulate(monkeypatch, "bf16"))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_later_copies_on_a_gpu(precision: str) -> None:
    check_later_copies(Cuda(precision=precision))
