"""What the preparation of convolutions will time is compiled ahead of it, all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda import Cuda, filter_gradient, kernels, large, own
from osucaffe.backends.cuda.ways import Way

from ..running import Output, Runner
from .simulated import simulate

LAYERS = {
    "in groups": ((2, 96, 27, 27), (256, 48, 5, 5), 1, 2, 2),
    "whole": ((2, 64, 14, 14), (96, 64, 3, 3), 1, 1, 1),
    "folded": ((2, 3, 67, 67), (96, 3, 11, 11), 4, 0, 1),
    "one channel": ((2, 1, 28, 28), (20, 1, 5, 5), 1, 0, 1),
    "five channels": ((2, 5, 16, 16), (8, 5, 3, 3), 1, 1, 1),
    "even channels": ((2, 16, 14, 14), (48, 16, 5, 5), 1, 2, 1),
}
"""Shapes of images and filters, stride, pad, groups."""
TF32 = "in groups", "folded"
"""Those for which we have kernels in tf32 alone."""
TIMED = "convolve", "filter_products", "correlate", "gradient"
"""Kernels of the files that are compiled for a trial."""


def recorded(backend: Any, layer: str, *, with_bias: bool) -> Runner:
    """A convolution, and its gradients to what is not the net's input."""
    images, filters, stride, pad, group = LAYERS[layer]
    y = [
        (size + 2 * pad - k) // stride + 1 for size, k in zip(images[2:], filters[2:], strict=True)
    ]
    x, w, b, dy = map(np.zeros, (images, filters, filters[:1], (images[0], filters[0], *y)))
    window = {"stride": [stride] * 2, "pad": [pad] * 2, "dilation": [1, 1], "group": group}
    bias = b if with_bias else None
    runner = Runner(backend)
    runner.record(
        "convolution", {"x": x, "w": w, "b": bias, "y": Output(dy.shape)}, window | {"relu": 0.1}
    )
    grads = {"x": x, "dy": dy, "dw": Output(filters), "db": Output(b.shape) if with_bias else None}
    runner.record("convolution_backward_filter", grads, window)
    if layer != "folded":
        back = {"dy": dy, "w": w, "dx": Output(images)}
        runner.record("convolution_backward_data", back, window)
        if with_bias:
            runner.calls[-1].reads["positive"] = runner.tensor(x)
    return runner


@pytest.mark.parametrize("with_bias", [False, True], ids=["alone", "bias, masked"])
@pytest.mark.parametrize(
    ("precision", "layer"),
    [
        *(("tf32", each) for each in LAYERS),
        *(("bf16", each) for each in LAYERS if each not in TF32),
    ],
)
def test_all_that_is_timed_was_asked_for(
    precision: str, layer: str, with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch)
    asked: list[str] = []

    def compiled(text: str, *_: Any) -> Future[Any]:
        asked.append(text)
        return Future()

    def measured(call: Any, tensors: Any, makers: Mapping[str, Callable[..., Any]]) -> list[Way]:
        steps = [make(call, tensors) for make in makers.values()]
        return [Way(-1.0, lambda: steps[0])] if steps else []

    monkeypatch.setattr(kernels, "_compiled", compiled)
    for owner in large, filter_gradient, own:
        monkeypatch.setattr(owner, "measured", measured)
    for owner in large, filter_gradient:
        monkeypatch.setattr(owner, "LEAST_WORK", 0)
    backend = Cuda(precision=precision)
    found = (lambda: SimpleNamespace(workspace=0)), 1.0
    backend.cudnn = SimpleNamespace(plan=lambda _: found)  # type: ignore[assignment]
    backend.cublas = SimpleNamespace(algorithm=lambda _: None)  # type: ignore[assignment]
    known: dict[str, Any] = {}
    backend.timings = known  # type: ignore[assignment]
    runner = recorded(backend, layer, with_bias=with_bias)
    backend.foresee(runner.calls)
    ahead = {*asked}
    asked.clear()
    runner.prepare()
    timed = {text for text in asked if any(f"\n{name}(" in text for name in TIMED)}
    assert len(timed) >= 2
    assert timed == ahead


def test_nothing_is_compiled_that_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    monkeypatch.setattr(kernels, "_compiled", lambda *_: pytest.fail("compiled"))
    backend = Cuda(precision="tf32")
    backend.timings = SimpleNamespace(get=lambda what: ("", 1.0))  # type: ignore[assignment]
    monkeypatch.setattr(large, "LEAST_WORK", 0)
    monkeypatch.setattr(filter_gradient, "LEAST_WORK", 0)
    backend.foresee(recorded(backend, "in groups", with_bias=True).calls)
