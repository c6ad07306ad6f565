"""Small inner products by kernels of our own give the same, whether or not they are the fastest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda, dense
from osucaffe.backends.cuda.ways import Way

from ..running import Output, run_call
from .simulated import simulate
from .test_layers import TOLERANCES, close

SIZES = {
    "CIFAR-10 ip1": (100, 64, 1024),
    "CIFAR-10 ip2": (100, 10, 64),
    "LeNet ip1": (64, 500, 800),
    "odd": (9, 13, 130),
}
"""Rows, outputs, inputs."""


@pytest.fixture(autouse=True)
def own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(call: Any, tensors: Any, makers: Mapping[str, Callable[..., Any]]) -> list[Way]:
        (make,) = makers.values()
        return [Way(-1.0, lambda: make(call, tensors))]

    monkeypatch.setattr(dense, "measured", measured)


def run(size: str, make: Callable[[], Any]) -> dict[str, Any]:
    """The output and the gradients of weights and biases."""
    rows, outputs, inputs = SIZES[size]
    generator = np.random.default_rng(1)
    x, w, b, dy = (
        generator.normal(size=shape)
        for shape in ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
    )
    settings = {"axis": 1, "transpose": False}
    y = Output((rows, outputs))
    forward = run_call(
        make(), "inner_product", {"x": x, "w": w, "b": b, "y": y}, settings, flexible=True
    )
    results = {"dw": Output((outputs, inputs)), "db": Output((outputs,))}
    backward = run_call(
        make(), "inner_product_backward_filter", {"x": x, "dy": dy} | results, settings,
        flexible=True,
    )  # fmt: skip
    return forward | backward


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("size", SIZES)
def test_kernels_compile(size: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    monkeypatch.setattr(dense, "product_ways", lambda *_, **__: [Way(0.0, lambda: lambda: None)])
    run(size, lambda: Cuda(precision=precision))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("size", SIZES)
def test_kernels_agree(size: str, precision: str) -> None:
    wanted, found = run(size, Cpu), run(size, lambda: Cuda(precision=precision))
    for name, values in wanted.items():
        close(found[name], values, TOLERANCES[precision])
