"""Convolutions as a GPU computes each of them, by whichever candidate, against the CPU's."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.autotune.tuner import Tuner
from osucaffe.backends.cuda.convolution import (
    implicit_gemm,
    small_mma,
)
from osucaffe.backends.cuda.convolution.wgrad import Wgrad16Bit, WgradTf32

from ..simulated import force, simulate, with_libraries
from .layers import (
    EIGHTS,
    GROUPS,
    HOPPER,
    IMAGE,
    LAYERS,
    ODD_EIGHTS,
    ODD_GRADIENTS,
    ODD_OUTPUTS,
    OF_ANY_SIZE,
    TOLERANCES,
    close,
    run,
)

ALL = LAYERS | GROUPS | HOPPER | ODD_OUTPUTS | EIGHTS | ODD_EIGHTS | ODD_GRADIENTS | IMAGE
LIBRARIES = ("cudnn alone", "cudnn fused", "cublaslt")


@pytest.fixture
def worth_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    """All candidates are, however small the layer is."""
    for module, name, value in OF_ANY_SIZE:
        monkeypatch.setattr(module, name, value)


@functools.lru_cache(1)
def by_cpu(name: str, relu: float | None) -> dict[str, Any]:
    return run(Cpu(), ALL[name], relu=relu)


@pytest.mark.gpu
@pytest.mark.parametrize("flexible", [False, True], ids=["row-major", "free"])
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("name", LAYERS)
def test_convolution(name: str, precision: str, flexible: bool) -> None:
    found = run(Cuda(precision=precision), LAYERS[name], flexible=flexible)
    for result, wanted in by_cpu(name, 0.0).items():
        close(found[result], wanted, TOLERANCES[precision])


class Every:
    """Chooses the candidate of this number (around in a circle) of each call; `count` says how many
    the call with the most has. own: none that is a library's alone, where there is another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
        self.number, self.count, self._own = 0, 1, own
        self.names: list[str] = []
        monkeypatch.setattr(Tuner, "fastest", self._fastest)

    def _fastest(self, ctx: Any, offered: Any) -> Any:
        found = [(each.name, one) for each in offered for one in each.candidates()]
        own = [one for one in found if one[0] not in LIBRARIES]
        found = own if self._own and own else found
        self.count = max(self.count, len(found))
        name, one = found[self.number % len(found)]
        self.names.append(f"{ctx.call.name} by {name}: {one.name}")
        return one


def cases() -> Iterator[Any]:
    """Layer, precision, the ReLU's slope, whether libraries alone are left out."""
    for name, precision in itertools.product(LAYERS, TOLERANCES):
        yield name, precision, 0.0, False
    for name, precision in itertools.product(GROUPS, TOLERANCES):
        yield name, precision, 0.1, False
    for name in HOPPER | ODD_OUTPUTS | ODD_GRADIENTS | IMAGE:
        yield name, "tf32", 0.1, True
    for name in HOPPER | EIGHTS | ODD_EIGHTS:
        yield name, "bf16", 0.1, True
    yield "5x5 in eights", "fp16", 0.1, True


@pytest.mark.gpu
@pytest.mark.usefixtures("worth_trying")
@pytest.mark.parametrize(("name", "precision", "relu", "own"), [*cases()])
def test_every_candidate_agrees(
    name: str, precision: str, relu: float, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries in all their plans, and our own kernels, whichever is the fastest."""
    backend, every, failed = Cuda(precision=precision), Every(monkeypatch, own), []
    while every.number < every.count:
        every.names.clear()
        found = run(backend, ALL[name], relu=relu)
        for result, wanted in by_cpu(name, relu).items():
            try:
                close(found[result], wanted, TOLERANCES[precision])
            except AssertionError as error:
                failed.append(f"{result} {error}: {every.names}")
        every.number += 1
    assert not failed


BOTH = ("tf32", "bf16")
COMPILED: list[tuple[str, int, tuple[str, ...], list[str], tuple[str, ...]]] = [
    ("small_mma", small_mma.TRIED, ("forward", "data", "filter"),
     ["LeNet conv2", "CIFAR-10 conv1"], BOTH),
    # To the compiler, fp16 is bf16 with other instructions: one layer shows it.
    ("small_mma", small_mma.TRIED, ("forward", "data", "filter"), ["LeNet conv1"], ("fp16",)),
    ("few_channels", 4, ("forward",), ["VGG conv1_1"], ("bf16",)),
    ("few_channels", 1, ("forward",), ["VGG conv1_1"], ("tf32",)),
    ("implicit_gemm", implicit_gemm.TRIED, ("forward", "data"),
     ["AlexNet conv2", "GoogLeNet conv2"], BOTH),
    ("implicit_gemm", implicit_gemm.TRIED, ("forward",), ["AlexNet conv1"], BOTH),
    ("implicit_gemm", implicit_gemm.TRIED, ("forward",), ["GoogLeNet 3b 5x5"], ("fp16",)),
    ("wgrad_tf32", WgradTf32.tried, ("filter",),
     ["AlexNet conv1", "AlexNet conv2", "GoogLeNet 4e 3x3"], ("tf32",)),
    ("wgrad_16bit", Wgrad16Bit.tried, ("filter",),
     ["AlexNet conv1", "AlexNet conv2", "GoogLeNet 4e 3x3", "GoogLeNet 3b 5x5"], ("bf16",)),
    ("wgrad_16bit", Wgrad16Bit.tried, ("filter",), ["GoogLeNet 4b 5x5"], ("fp16",)),
]  # fmt: skip
"""Provider, how many candidates it has, operations, layers, precisions."""


@pytest.mark.usefixtures("worth_trying")
@pytest.mark.parametrize(
    ("provider", "tried", "operations", "name", "precision"),
    [
        pytest.param(
            *(provider, tried, operations, name, precision),
            marks=pytest.mark.long if provider == "implicit_gemm" else (),
        )
        for provider, tried, operations, names, precisions in COMPILED
        for name, precision in itertools.product(names, precisions)
    ],
)
def test_all_configs_compile(
    provider: str,
    tried: int,
    operations: tuple[str, ...],
    name: str,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulate(monkeypatch)
    for number in range(tried):
        with monkeypatch.context() as patch:
            force(patch, provider, number)
            backend = with_libraries(Cuda(precision=precision))
            run(backend, ALL[name], operations, relu=0.1)
