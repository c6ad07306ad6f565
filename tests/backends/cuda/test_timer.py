"""The clock on the GPU: its kernel compiles, and what it measures."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.timer import HOLD
from osucaffe.solvers.tracer import Tracer

from .compiler import nvrtc
from .simulated import Kernel, compile_ptx, simulate
from .test_training import make_solver


def test_the_kernel_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from osucaffe.backends.cuda.runtime.compile import OPTIONS, read

    if nvrtc() is None:
        pytest.skip("NVRTC is not installed")
    simulate(monkeypatch)
    hold = Kernel(compile_ptx(read("common.cuh") + HOLD, OPTIONS), "hold")
    hold((1,), (1,), (np.uint64(5),))


@pytest.mark.gpu
def test_launching_slowly_does_not_count() -> None:
    backend: Any = Cuda()
    timer = backend.timer()
    memory = backend.allocate(1 << 20)
    spans = []
    for _ in range(4):
        timer.begin()
        for _ in range(3):
            memory[:] = 1
            time.sleep(2e-3)
            timer.mark()
        times = timer.read()
        spans.append(times[-1] - times[0])
    assert 0 < min(spans[1:]) < 1e-3


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_traced_run_computes_the_same_bits(precision: str, tmp_path: Path) -> None:
    results = []
    backend = Cuda(precision=precision)
    for traced in False, True:
        solver = make_solver(backend)
        if traced:
            solver.tracer = Tracer(tmp_path / "out.json", backend)
        solver.step(12)
        results.append([backend.read(each.blob.data) for each in solver.net.parameters])
    np.testing.assert_equal(*results)
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    on_device = {e["name"] for e in events if e.get("tid") == tracks["GPU 0"] and e["ph"] == "X"}
    assert {"forward", "backward", "update", "conv", "ip", "loss"} <= on_device


@pytest.mark.gpu
def test_an_overflow_on_the_device_skips_the_update() -> None:
    backend = Cuda(precision="fp16")
    solver = make_solver(backend)
    solver.net.write("x", np.ones((4, 3, 16, 16), np.float32))
    solver.net.write("label", np.zeros(4, np.float32))
    solver.step(4)
    assert solver.loss_scale
    factor, good, skipped = solver.loss_scale.read()
    assert (good, skipped) == (4, 0)
    before = [backend.read(each.blob.data) for each in solver.net.parameters]
    solver.loss_scale.write([2.0**24, 0, 0])
    solver.step(1)
    assert solver.loss_scale.read() == [2.0**23, 0, 1]
    for each, value in zip(solver.net.parameters, before, strict=True):
        np.testing.assert_array_equal(backend.read(each.blob.data), value)
    solver.loss_scale.write([factor, 0, 0])
    solver.step(2)
    assert solver.loss_scale.read() == [factor, 2, 0]
