"""Every division of a small convolution's work fits the device, and computes the same."""

from __future__ import annotations

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda.convolution import small_mma
from osucaffe.backends.cuda.convolution.small_mma import Small

from ..devices import DEVICES
from ..emulated import emulate, needs_compilers
from ..simulated import force
from .layers import Layer, close, run

LAYERS = {
    "odd": Layer((3, 5, 7, 6), (11, 5, 3, 2), pad=(1, 1)),
    "even": Layer((2, 6, 6, 9), (20, 6, 3, 3), pad=(1, 0)),
}
"""Channels."""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("gpu", [name for name, each in DEVICES.items() if each.has_mma])
def test_configs_fit_the_device(gpu: str, dtype: str) -> None:
    device = DEVICES[gpu]
    for batch in 1, 100:
        images, maps = (batch, 32, 16, 16), (batch, 64, 16, 16)
        small = Small(images, (64, 32, 5, 5), maps, ((1, 1), (2, 2), (1, 1)), 1, dtype=dtype)
        configs = small.correlations(device) + small.transposed.correlations(device)
        assert configs or device.shared_memory < 100 << 10
        for config in configs + small_mma.configs(device, small):
            assert config.words * 4 <= device.shared_memory
            assert config.threads in range(32, 513, 32)
            rows, parts = dict(config.macros)["ROWS"], config.grid[1:]
            assert len(parts) < 2 or (parts[0] - 1) * rows < 16 <= parts[0] * rows


@needs_compilers
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", LAYERS)
def test_kernels_in_lockstep(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch, "small_mma", number)
    found = run(emulate(monkeypatch, "tf32"), LAYERS[name], relu=0.1)
    for result, wanted in run(Cpu(), LAYERS[name], relu=0.1).items():
        close(found[result], wanted, 1e-5)
