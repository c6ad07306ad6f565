"""Every division of a small convolution's work fits the device."""

from __future__ import annotations

import pytest

from osucaffe.backends.cuda.convolution import small_mma
from osucaffe.backends.cuda.convolution.small_mma import Small

from ..devices import DEVICES


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
