"""What passes make of random nets for a GPU, verified without one."""

from __future__ import annotations

from collections import Counter

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.tensor import Call
from osucaffe.graph.passes import pipeline
from osucaffe.graph.passes.pipeline import Build, Pass
from osucaffe.graph.passes.verify import SWITCH
from osucaffe.net import Net
from tests.differential.random_nets.generate import generate

SEED, COUNT = 102, 160


class Offers(Cpu):
    """Offers what a GPU does: that convolutions add gradients, whatever their size is."""

    fuses_relu_backward = Cuda.fuses_relu_backward
    overlaps = Cuda.overlaps
    sums_outputs = Cuda.sums_outputs
    skips_pixels = Cuda.skips_pixels

    def adds_gradient(self, call: Call) -> bool:
        name = call.name
        return (name == "convolution_backward_data" and call.settings["group"] == 1) or (
            name in ("average_pooling_backward", "max_pooling_backward")
        )


class Enough(Exception):
    """There is nothing to prepare."""


def test_random_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Counter[str]()

    def count(build: Build) -> None:
        for call in (call for calls in build.programs for call in calls):
            found.update(f"{name} of {call.name}" for name in ("addend", "sums", "relu_output")
                         if name in call.reads | call.writes)  # fmt: skip
        raise Enough

    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(pipeline, "PREPARE", (Pass("prepare", count),))
    for number in range(COUNT):
        with pytest.raises(Enough):
            Net(generate(SEED, number, wide=True), backend=Offers(), phase="TRAIN")
    assert found["addend of convolution_backward_data"] > 5, found
    assert found["sums of convolution"] > 3, found
    assert found["addend of max_pooling_backward"] > 3, found
