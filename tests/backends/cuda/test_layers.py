"""Convolutions and products of real nets, as a GPU computes each of them, against the CPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda, convolution

from ..running import Output, Runner, run_call

TOLERANCES = {"fp32": 2e-5, "tf32": 2e-3, "fp16": 4e-3, "bf16": 3e-2}

LAYERS = {
    "LeNet conv1": ((8, 1, 28, 28), (20, 1, 5, 5), 1, 0, 1),
    "LeNet conv2": ((7, 20, 12, 12), (50, 20, 5, 5), 1, 0, 1),
    "CIFAR-10 conv1": ((5, 3, 32, 32), (32, 3, 5, 5), 1, 2, 1),
    "CIFAR-10 conv2": ((3, 32, 16, 16), (32, 32, 5, 5), 1, 2, 1),
    "CIFAR-10 conv3": ((9, 32, 8, 8), (64, 32, 5, 5), 1, 2, 1),
    "AlexNet conv1": ((2, 3, 227, 227), (96, 3, 11, 11), 4, 0, 1),
    "VGG conv1_1": ((12, 3, 224, 224), (64, 3, 3, 3), 1, 1, 1),
    "AlexNet conv2": ((2, 96, 27, 27), (256, 48, 5, 5), 1, 2, 2),
    "GoogLeNet conv1": ((2, 3, 224, 224), (64, 3, 7, 7), 2, 3, 1),
    "GoogLeNet 3a 1x1": ((2, 192, 28, 28), (64, 192, 1, 1), 1, 0, 1),
    "GoogLeNet 3a 5x5": ((2, 16, 28, 28), (32, 16, 5, 5), 1, 2, 1),
}


def close(found: Any, wanted: Any, tolerance: float) -> None:
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error <= tolerance, error


@pytest.mark.gpu
@pytest.mark.parametrize("flexible", [False, True], ids=["row-major", "free"])
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("layer", LAYERS)
def test_convolution(layer: str, precision: str, flexible: bool) -> None:
    images, filters, stride, pad, group = LAYERS[layer]
    generator = np.random.default_rng(0)
    maps = [(extent + 2 * pad - filters[2]) // stride + 1 for extent in images[2:]]
    shape = (images[0], filters[0], *maps)
    x, dy, w, b = (
        generator.normal(size=size).astype(np.float32).astype(np.float64)
        for size in (images, shape, filters, filters[:1])
    )
    before = {"dw": w * 10, "db": b * 10}
    settings = {"stride": [stride] * 2, "pad": [pad] * 2, "dilation": [1, 1], "group": group}
    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("convolution", {"x": x, "w": w, "b": b, "y": Output(shape)}, {"relu": 0.0}),
        ("convolution_backward_data", {"dy": dy, "w": w, "dx": Output(images)}, {}),
        ("convolution_backward_filter",
         {"x": x, "dy": dy, "dw": Output(filters), "db": Output((filters[0],))}, {}),
        ("convolution_backward_filter", {"x": x, "dy": dy, **before}, {}),
    ]  # fmt: skip
    for name, tensors, more in calls:
        added = ("dw", "db") if tensors.get("dw") is before["dw"] else ()
        results = [
            run_call(backend, name, tensors, settings | more, flexible=free, accumulates=added)
            for backend, free in ((Cpu(), True), (Cuda(precision=precision), flexible))
        ]
        for argument, wanted in results[0].items():
            close(results[1][argument], wanted, TOLERANCES[precision])


@pytest.mark.gpu
@pytest.mark.parametrize("number", [0, -1], ids=["behind", "fused"])
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("layer", ["AlexNet conv2", "GoogLeNet 3a 1x1", "GoogLeNet 3a 5x5"])
def test_data_gradient_through_a_relu(
    layer: str, precision: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, filters, stride, pad, group = LAYERS[layer]
    monkeypatch.setattr(convolution, "WORTH_FUSING", 0)
    monkeypatch.setattr(convolution, "packed_ways", lambda *_, **__: [])
    monkeypatch.setattr(convolution, "fastest", lambda call, ways: ways[number].make())
    generator = np.random.default_rng(2)
    x, dy, w = (
        generator.normal(size=size)
        for size in (images, (images[0], filters[0], *images[2:]), filters)
    )
    settings = {"stride": [stride] * 2, "pad": [pad] * 2, "dilation": [1, 1], "group": group}
    found = []
    for backend in Cpu(), Cuda(precision=precision):
        runner = Runner(backend)
        dx = Output(images)
        runner.record("convolution_backward_data", {"dy": dy, "w": w, "dx": dx}, settings)
        if isinstance(backend, Cuda):
            runner.calls[-1].reads["positive"] = runner.tensor(x)
        runner.prepare()()
        found.append(runner.read(dx))
    close(found[1], np.where(x > 0, found[0], 0), TOLERANCES[precision])
