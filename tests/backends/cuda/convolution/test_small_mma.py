"""Every division of a small convolution's work gives the same, not only the fastest one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.convolution import small_mma
from osucaffe.backends.cuda.convolution.small_mma import TRIED, Small

from ...running import Output, run_call
from ..devices import DEVICES
from ..simulated import force, simulate, with_libraries
from .test_layers import LAYERS, TOLERANCES, close

SMALL = [name for name in LAYERS if name.startswith(("LeNet", "CIFAR"))]


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
        relu_output = x if masked and "dx" in given else None
        found |= run_call(make(), name, given, window, flexible=True, relu_output=relu_output)
    return found


@pytest.mark.parametrize(
    ("layer", "precision"),
    # To the compiler, fp16 is bf16 with other instructions: one layer shows it.
    [*itertools.product(SMALL, ["tf32", "bf16"]), (SMALL[0], "fp16")],
)
def test_all_configs_compile(layer: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    for number in range(TRIED):
        with monkeypatch.context() as patch:
            force(patch, "small_mma", number)
            run(layer, lambda: with_libraries(Cuda(precision=precision)), masked=number % 2 > 0)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.parametrize("layer", SMALL)
def test_all_configs_agree(layer: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Cuda(precision=precision)
    wanted = run(layer, Cpu)
    x = np.random.default_rng(1).normal(size=LAYERS[layer][0])  # as `run` draws it
    stopped = wanted | {"dx": np.where(x > 0, wanted["dx"], 0)}
    for number, masked in itertools.product(range(TRIED), [False, True]):
        with monkeypatch.context() as patch:
            force(patch, "small_mma", number)
            found = run(layer, lambda: backend, masked=masked)
        for name, values in (stopped if masked else wanted).items():
            close(found[name], values, TOLERANCES[precision])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("gpu", [name for name, each in DEVICES.items() if each.has_mma])
def test_configs_fit_the_device(gpu: str, dtype: str) -> None:
    device = DEVICES[gpu]
    for batch in 1, 100:
        images, maps = (batch, 32, 16, 16), (batch, 64, 16, 16)
        small = Small(images, (64, 32, 5, 5), maps, ((1, 1), (2, 2), (1, 1)), 1, dtype)
        configs = small.correlations(device) + small.transposed.correlations(device, flipped=True)
        assert configs or device.shared_memory < 100 << 10
        for config in configs + small_mma.configs(device, small):
            assert config.words * 4 <= device.shared_memory
            assert config.threads in range(32, 513, 32)
            rows, parts = dict(config.macros)["ROWS"], config.grid[1:]
            assert len(parts) < 2 or (parts[0] - 1) * rows < 16 <= parts[0] * rows
