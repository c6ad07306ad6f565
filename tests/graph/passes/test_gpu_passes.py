"""What passes make of random nets for a GPU, verified without one."""

from __future__ import annotations

from collections import Counter

import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.primitives.pooling import AveragePoolingBackward, MaxPoolingBackward
from osucaffe.backends.primitives.products import ConvolutionBackwardData
from osucaffe.backends.primitives.recording import Primitive
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
    enabled_passes = Cuda.enabled_passes

    def adds_gradient(self, call: Primitive) -> bool:
        if isinstance(call, ConvolutionBackwardData):
            return call.group == 1
        return isinstance(call, AveragePoolingBackward | MaxPoolingBackward)


class Enough(Exception):
    """There is nothing to prepare."""


def test_random_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Counter[str]()

    def count(build: Build) -> None:
        for call in (call for calls in build.programs for call in calls):
            names = ("addend", "sums", "subsample", "max_input", "slices")
            given = [name for name in names if getattr(call, name, None) is not None]
            found.update(f"{name} of {call.name}" for name in given)
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
    assert found["subsample of batch_norm_backward"] > 9, found
    assert found["max_input of batch_norm_pooling_backward"] > 2, found
    assert found["slices of concat"] > 0, found
