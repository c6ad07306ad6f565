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

SEED, COUNT = 113, 120


class Offers(Cpu):
    """Offers what a GPU does: that convolutions add gradients, whatever their size is."""

    fuses_relu_backward = Cuda.fuses_relu_backward
    overlaps = Cuda.overlaps
    gains = Cuda.gains

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
            given = call.reads | call.writes | call.settings
            names = ("addend", "sums", "every", "peaks", "cuts")
            found.update(f"{name} of {call.name}" for name in names if given.get(name) is not None)
        raise Enough

    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(pipeline, "PREPARE", (Pass("prepare", count),))
    for number in range(COUNT):
        net = generate(SEED, number, wide=True)
        with pytest.raises(Enough):
            Net(net, backend=Offers(), phase="TRAIN")
        if number % 8 == 0:
            with pytest.raises(Enough):
                Net(net, backend=Offers(), phase="TEST", inference=True)
    assert found["addend of convolution_backward_data"] > 5, found
    assert found["sums of convolution"] > 3, found
    assert found["addend of max_pooling_backward"] > 2, found
    assert found["every of batch_norm_backward"] > 9, found
    assert found["peaks of batch_norm_pooling_backward"] > 2, found
    assert found["cuts of concat"] > 0, found
