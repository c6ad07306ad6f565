"""Small inner products by kernels of our own give the same, whether or not they are the fastest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.convolution import small_mma
from osucaffe.backends.cuda.primitives import products
from tests.backends.running import Output, run_call

from ..convolution.layers import TOLERANCES, close
from ..emulated import emulate, needs_compilers
from ..simulated import force, simulate, with_libraries

SIZES = {
    "CIFAR-10 ip1": (100, 64, 1024),
    "CIFAR-10 ip2": (100, 10, 64),
    "LeNet ip1": (64, 500, 800),
    "odd": (19, 13, 130),
}
"""Rows, outputs, inputs."""
PRODUCTS = [("small product", number) for number in range(len(products.SHAPES))]
TENSOR_CORES = [("small_mma", number) for number in range(small_mma.TRIED)]


@pytest.fixture
def own_kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is to win in turn."""
    force(monkeypatch, *request.param)


def tensors(size: str) -> list[np.ndarray]:
    """x, w, b, dy."""
    rows, outputs, inputs = SIZES[size]
    generator = np.random.default_rng(1)
    shapes = (rows, inputs), (outputs, inputs), (outputs,), (rows, outputs)
    return [generator.normal(size=shape) for shape in shapes]


def run(size: str, make: Callable[[], Any], *, masked: bool = False) -> dict[str, Any]:
    """The output and all gradients. masked: x came out of a ReLU, which stops its gradient."""
    x, w, b, dy = tensors(size)
    rows, outputs = dy.shape
    relu_output = x if masked else None
    settings = {"axis": 1, "transpose": False}
    y = Output((rows, outputs))
    forward = run_call(
        make(), "inner_product", {"x": x, "w": w, "b": b, "y": y}, settings, flexible=True
    )
    results = {"dw": Output(w.shape), "db": Output(b.shape)}
    backward = run_call(
        make(), "inner_product_backward_filter", {"x": x, "dy": dy} | results, settings,
        flexible=True,
    )  # fmt: skip
    backward |= run_call(
        make(), "inner_product_backward_data", {"dy": dy, "w": w, "dx": Output(x.shape)}, settings,
        flexible=True, relu_output=relu_output,
    )  # fmt: skip
    return forward | backward


@pytest.mark.parametrize("own_kernel", [*PRODUCTS, TENSOR_CORES[0]], indirect=True)
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("own_kernel")
def test_kernels_compile(size: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    for masked in False, True:
        run(size, lambda: with_libraries(Cuda(precision=precision)), masked=masked)


@needs_compilers
@pytest.mark.parametrize("own_kernel", [*PRODUCTS, *TENSOR_CORES[:2]], indirect=True)
@pytest.mark.usefixtures("own_kernel")
def test_kernels_in_lockstep(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run("odd", Cpu)
    found = run("odd", lambda: emulate(monkeypatch, "tf32"))
    for name, values in wanted.items():
        close(found[name], values, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("own_kernel", [*PRODUCTS, *TENSOR_CORES], indirect=True)
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.usefixtures("own_kernel")
def test_kernels_agree(size: str, precision: str) -> None:
    wanted, (x, *_) = run(size, Cpu), tensors(size)
    for masked in False, True:
        found = run(size, lambda: Cuda(precision=precision), masked=masked)
        wanted["dx"] = np.where((x > 0) | (not masked), wanted["dx"], 0)
        for name, values in wanted.items():
            close(found[name], values, TOLERANCES[precision])
