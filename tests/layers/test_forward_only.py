"""Every layer in a net that only runs forward, against one whose blobs can all be looked at."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu.backend import Cpu

from .nets import build, error
from .test_gradients import CASES, drawn
from .test_planned import surrounded


@pytest.mark.parametrize(("type_", "shapes", "text", "options"), CASES)
@pytest.mark.parametrize(
    "onednn", [pytest.param(False, marks=pytest.mark.long), True], ids=["numpy", "onednn"]
)
def test_outputs_are_the_same(type_, shapes, text, options, onednn) -> None:
    backend = Cpu(onednn=onednn)
    if onednn and backend.onednn is None:
        pytest.skip("oneDNN is not installed")
    text = surrounded(shapes, text, options["labels"])
    plain = build(text, backend, phase="TEST", inspectable=True)
    fast = build(text, backend, phase="TEST", inference=True)
    for seed in 7, 8:
        random = np.random.default_rng(seed)
        for mine, other in zip(plain.parameters, fast.parameters, strict=True):
            values = random.uniform(0.3, 1.2, mine.blob.shape).astype(np.float32)
            backend.write(mine.blob.data, values)
            backend.write(other.blob.data, values)
        fast.refresh()
        for name, values in drawn(random, shapes, options).items():
            for net in plain, fast:
                net.write(name, values)
        for net in plain, fast:
            net.random.step = 3  # the same random numbers each time
            net.forward()
        assert plain.outputs == fast.outputs
        for name in plain.outputs:
            assert error(fast.read(name), plain.read(name)) < 1e-5, name
        assert fast.loss() == pytest.approx(plain.loss(), rel=1e-4, nan_ok=True)
