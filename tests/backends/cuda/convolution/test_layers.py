"""Convolutions and products of real nets, as a GPU computes each of them, against the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.autotune.tuner import Tuner
from osucaffe.backends.cuda.convolution import providers

from ...running import Output, run_call

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
    "MobileNet conv3_1": ((4, 128, 28, 28), (128, 1, 3, 3), 1, 1, 128),
    "MobileNet, odd": ((3, 60, 29, 29), (60, 1, 3, 3), 2, 1, 60),
}
MOST_IMAGES = 9
"""That every candidate computes: there are many."""


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


class Every:
    """Chooses all candidates for a call, one after another; how many there are is known then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 0
        self.names: list[str] = []
        chosen = Tuner.fastest

        def fastest(tuner: Tuner, call: Any, offered: Any) -> Any:
            if call.name != self.primitive:
                return chosen(tuner, call, offered)
            found = [(each.name, one) for each in offered for one in each.candidates()]
            self.names = [f"{name}: {one.name}" for name, one in found]
            return found[self.number][1]

        monkeypatch.setattr(Tuner, "fastest", fastest)
        self.primitive = ""

    def run(self, primitive: str, once: Callable[[], None]) -> None:
        """Run something once for each candidate of its call of a primitive."""
        self.primitive, self.number = primitive, 0
        failed, count = [], 1
        while self.number < count:
            try:
                once()
            except AssertionError as error:
                failed.append(f"{self.names[self.number]}: {error}")
            count = len(self.names)
            self.number += 1
        assert not failed


@pytest.mark.gpu
@pytest.mark.parametrize("masked", [False, True], ids=["alone", "masked"])
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_candidate_agrees(
    layer: str, precision: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries in all their plans, and our own kernels, whichever is the fastest."""
    images, filters, stride, pad, group = LAYERS[layer]
    images = (min(images[0], MOST_IMAGES), *images[1:])
    monkeypatch.setattr(providers, "WORTH_FUSING", 0)
    generator = np.random.default_rng(2)
    maps = [(extent + 2 * pad - filters[2]) // stride + 1 for extent in images[2:]]
    x, dy, w, b = (
        generator.normal(size=size).astype(np.float32).astype(np.float64)
        for size in (images, (images[0], filters[0], *maps), filters, filters[:1])
    )
    window = {"stride": [stride] * 2, "pad": [pad] * 2, "dilation": [1, 1], "group": group}
    grads = {"dw": Output(filters), "db": Output((filters[0],))}
    calls: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "convolution": ({"x": x, "w": w, "b": b, "y": Output(dy.shape)}, {"relu": 0.0}),
        "convolution_backward_data": ({"dy": dy, "w": w, "dx": Output(images)}, {}),
        "convolution_backward_filter": ({"x": x, "dy": dy, **grads}, {}),
    }
    if masked:
        del calls["convolution"], calls["convolution_backward_filter"]
    every, backend = Every(monkeypatch), Cuda(precision=precision)
    for name, (tensors, more) in calls.items():
        wanted = run_call(Cpu(), name, tensors, window | more)
        if masked:
            wanted["dx"] = np.where(x > 0, wanted["dx"], 0)

        def once(
            name: str = name, tensors: Any = tensors, more: Any = more, wanted: Any = wanted
        ) -> None:
            found = run_call(
                backend, name, tensors, window | more, relu_output=x if masked else None
            )
            for argument, right in wanted.items():
                close(found[argument], right, TOLERANCES[precision])

        every.run(name, once)
