"""Nets that only run forward, on a GPU: the kernels of what is folded compile; graphs are kept for
shapes, and compute what the CPU does."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.net import Net

from ...backends.cuda.simulated import force, simulate, with_libraries
from .test_inference import NETS, outputs, randomize, read

BOUNDS = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2, "fp16": 1e-2}
"""Of what may differ from the CPU's outputs, as a share of the largest."""


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", NETS)
def test_kernels_compile(name: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    force(monkeypatch, "c", 0)
    backend = with_libraries(Cuda(precision=precision, graphs=False))
    plain = Net(read(NETS[name][0]), backend=backend, phase="TEST", inspectable=True)
    for share in None, plain:
        options = {"phase": "TEST", "inference": True, "share": share}
        net = Net(read(NETS[name][0]), backend=backend, **options)
        net.forward()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("name", NETS)
def test_outputs_are_those_of_the_cpu(name: str, precision: str) -> None:
    text, bound = NETS[name][0], BOUNDS[precision]
    plain = Net(read(text), backend=Cpu(), phase="TEST", inspectable=True)
    backend = Cuda(precision=precision)
    beside = Net(read(text), backend=backend, phase="TEST", inspectable=True)
    nets = [
        Net(read(text), backend=backend, phase="TEST", inference=True, share=share)
        for share in (None, beside)
    ]
    for seed in 3, 5:  # the weights change behind a captured graph
        for net in plain, beside, nets[0]:
            randomize(net, seed)
        nets[1].refresh()
        for inputs in range(4):  # run, captured, replayed
            wanted = outputs(plain, inputs)
            for net in nets:
                for output, values in outputs(net, inputs).items():
                    allowed = bound * np.abs(wanted[output]).max()
                    np.testing.assert_allclose(values, wanted[output], rtol=0, atol=allowed)


@pytest.mark.gpu
def test_graphs_of_shapes_that_come_again() -> None:
    text = NETS["convolution, norm, scale, ReLU"][0]
    plain = Net(read(text), backend=Cpu(), phase="TEST", inspectable=True)
    fast = Net(read(text), backend=Cuda(), phase="TEST", inference=True)
    for net in plain, fast:
        randomize(net)
    for round_ in range(4):
        for count in 2, 5, 1:
            for net in plain, fast:
                net.reshape({"x": (count, 6, 9, 7)})
            wanted, found = outputs(plain, round_), outputs(fast, round_)
            for name, values in wanted.items():
                np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-4)
