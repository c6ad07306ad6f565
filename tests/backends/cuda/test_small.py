"""Every division of a small convolution's work gives the same, not only the fastest one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda, kernels, own, warpgroup
from osucaffe.backends.cuda.small import SHARED, TRIED, Small
from osucaffe.backends.cuda.ways import Way

from ..running import Output, run_call
from .simulated import simulate
from .test_layers import LAYERS, TOLERANCES, close

NUMBERS = [*itertools.product(range(TRIED), [False, True])]
SMALL = [name for name in LAYERS if name.startswith(("LeNet", "CIFAR"))]


def force(monkeypatch: pytest.MonkeyPatch, number: int, warpgroups: bool) -> None:
    """Let kernels of our own win, in their division of this number (from 0, around in a circle).

    warpgroups: those of Hopper GPUs, where there are any.
    """

    def measured(call: Any, tensors: Any, makers: Mapping[str, Callable[..., Any]]) -> list[Way]:
        if not makers:
            return []
        name, chosen = [*makers.items()][number % len(makers)]
        wanted = ("warpgroups" in name) == warpgroups
        return [Way(-2.0 if wanted else -1.0, lambda: chosen(call, tensors))]

    monkeypatch.setattr(own, "measured", measured)


def run(layer: str, make: Callable[[], Any], *, masked: bool = False) -> dict[str, Any]:
    """Outputs and all gradients of a layer. masked: x came out of a ReLU, which stops them."""
    images, filters, stride, pad, group = LAYERS[layer]
    generator = np.random.default_rng(1)
    maps = [extent + 2 * pad - filters[2] + 1 for extent in images[2:]]
    shape = (images[0], filters[0], *maps)
    x, dy, w, b = (generator.normal(size=size) for size in (images, shape, filters, (filters[0],)))
    window = {"stride": [stride] * 2, "pad": [pad] * 2, "dilation": [1, 1], "group": group}
    tensors: dict[str, dict[str, Any]] = {
        "convolution": {"x": x, "w": w, "b": b, "y": Output(shape)},
        "convolution_backward_data": {"dy": dy, "w": w, "dx": Output(images)},
        "convolution_backward_filter": {
            "x": x, "dy": dy, "dw": Output(filters), "db": Output((filters[0],)),
        },
    }  # fmt: skip
    found: dict[str, Any] = {}
    for name, given in tensors.items():
        positive = x if masked and "dx" in given else None
        found |= run_call(make(), name, given, window, flexible=True, positive=positive)
    return found


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("layer", SMALL)
def test_all_divisions_compile(layer: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)

    def make() -> Cuda:
        backend = Cuda(precision=precision)
        plan = SimpleNamespace(workspace=64, execute=lambda addresses, workspace: None)
        backend.cudnn = SimpleNamespace(plan=lambda _: ((lambda: plan), 1.0))  # type: ignore[assignment]
        return backend

    for number, warpgroups in NUMBERS:
        force(monkeypatch, number, warpgroups)
        run(layer, make, masked=number % 2 > 0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("layer", SMALL)
def test_all_divisions_agree(layer: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run(layer, Cpu)
    x = np.random.default_rng(1).normal(size=LAYERS[layer][0])  # as `run` draws it
    stopped = wanted | {"dx": np.where(x > 0, wanted["dx"], 0)}
    for (number, warpgroups), masked in itertools.product(NUMBERS, [False, True]):
        force(monkeypatch, number, warpgroups)
        found = run(layer, lambda: Cuda(precision=precision), masked=masked)
        for name, values in (stopped if masked else wanted).items():
            close(found[name], values, TOLERANCES[precision])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_divisions_fit_the_device(dtype: str) -> None:
    for batch in 1, 100:
        small = Small((batch, 32, 16, 16), (batch, 64, 16, 16), (5, 5), (2, 2), dtype)
        divisions = small.correlations() + small.turned.correlations(flipped=True)
        assert divisions
        for division in divisions + small.summations:
            assert division.words * 4 <= 227 << 10
            assert division.threads in range(32, 513, 32)
            rows, parts = dict(division.macros)["ROWS"], division.grid[1:]
            assert len(parts) < 2 or (parts[0] - 1) * rows < 16 <= parts[0] * rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_divisions_for_warpgroups_cover_the_output(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warpgroup, "compute_capability", lambda: kernels.HOPPER)
    for batch, inputs in itertools.product((1, 100), (3, 32)):
        small = Small((batch, inputs, 18, 18), (batch, 50, 16, 16), (5, 5), (1, 1), dtype)
        divisions = warpgroup.divisions(small)
        assert 1 < len(divisions) <= TRIED
        for division in divisions:
            macros = dict(division.macros)
            assert division.words * 4 <= SHARED
            assert division.threads in range(128, 513, 128)
            assert macros["ACROSS"] * 8 == 16
            assert division.grid[1] * macros["DOWN"] * 8 == 16
            assert (division.grid[2] - 1) * macros["OWN"] < 50 <= division.grid[2] * macros["OWN"]
            units = -(-inputs * (4 if dtype == "float32" else 2) // 16) * 25
            assert (macros["STAGES"] - 1) * macros["STAGE"] < units
            assert units <= macros["STAGES"] * macros["STAGE"]
    monkeypatch.setattr(warpgroup, "compute_capability", lambda: "80")
    assert not warpgroup.divisions(small)
