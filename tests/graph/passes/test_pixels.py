"""Batch normalization leaves out what convolutions with a stride do not read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.errors import UserError
from osucaffe.net import Net
from tests.layers.nets import build

from ...backends.cuda.simulated import simulate, with_libraries
from .test_batch_norm import SHAPES, branch, layer
from .test_inference import agree, block, head, outputs, randomize, read


class Skipping(Cpu):
    """Makes what is read alone."""

    enabled_passes = frozenset(("skip pixels",))


HEADS = head("one", "y") + head("two", "y") + layer("sum", "Eltwise", "one two", "sum")
SHORTCUT = branch("main", "stem", relu=False) + layer("y", "Eltwise", "stem main", "y")
PLAIN = branch("y", "stem", relu=False)
RELU = layer("relu", "ReLU", "y", "y")


def net_of(middle: str, heads: str) -> str:
    """A blob y behind a stem, and what reads it."""
    end = "reduction_param { operation: SUMSQ } loss_weight: 1"
    return (
        f'layer {{ name: "x" type: "Input" top: "x" input_param {{ {SHAPES} }} }}\n'
        + branch("stem", "x", relu=True) + middle + heads
        + layer("loss", "Reduction", "sum", "loss", end)
    )  # fmt: skip


def run(text: str, backend: Any = None, **options: bool) -> tuple[Net, list[np.ndarray]]:
    """The net, its loss and its parameters' gradients after two sub-iterations."""
    backend = backend or Skipping(onednn=False)
    net = build(text, backend, phase="TRAIN", accumulate=True, **options)
    net.write("x", np.random.default_rng(2).standard_normal((4, 3, 7, 6)))
    for accumulate in False, True:
        net.forward()
        net.backward(accumulate=accumulate)
    diffs = [net.backend.read(each.blob.diff) for each in net.parameters]
    return net, [np.asarray(net.loss()), *diffs]


def is_skipping(net: Net) -> bool:
    return any(getattr(call, "subsample", None) for calls in net.programs for call in calls)


@pytest.mark.parametrize("gpu", [False, pytest.param(True, marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("middle", "heads"),
    [
        (SHORTCUT, HEADS),
        (SHORTCUT + RELU, HEADS),
        (SHORTCUT + RELU, head("sum", "y")),
        (PLAIN, HEADS),
        (PLAIN + RELU, head("sum", "y", "kernel_size: 1 stride_h: 3 stride_w: 1")),
    ],
    ids=["shortcut", "shortcut, ReLU", "shortcut, ReLU, one", "plain", "plain, ReLU, one"],
)
def test_a_net_learns_the_same(middle: str, heads: str, gpu: bool) -> None:
    text = net_of(middle, heads)
    _, expected = run(text, inspectable=True)
    net, found = run(text, Cuda() if gpu else None)
    for wanted, got in zip(expected, found, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max() + 1e-9)
    for calls in net.programs:
        assert sum(getattr(call, "subsample", None) is not None for call in calls) == 1
        windows = [call.stride for call in calls if "conv" in call.name]
        assert {*map(tuple, windows)} == {(1, 1)}
    with pytest.raises(UserError, match='blob "y" is not computed'):
        net.read("y")


@pytest.mark.parametrize(
    "heads",
    [
        HEADS + layer("look", "Power", "y", "look"),
        HEADS.replace("stride: 2", "stride: 4", 1).replace("stride: 2", "stride: 5"),
        HEADS.replace("kernel_size: 1", "kernel_size: 2"),
        HEADS.replace("kernel_size: 1", "kernel_size: 1 pad: 1"),
        head("sum", "y", "kernel_size: 1"),
    ],
    ids=["another reads", "two strides", "larger", "padded", "no stride"],
)
def test_what_others_read_is_made(heads: str) -> None:
    net, _ = run(net_of(SHORTCUT, heads))
    assert not is_skipping(net)


@pytest.mark.parametrize("middle", [PLAIN, SHORTCUT, SHORTCUT + RELU])
def test_where_nothing_runs_backward_outputs_stay(middle: str) -> None:
    text, backend = net_of(middle, HEADS), Skipping(onednn=False)
    nets = [build(text, backend, inspectable=True), build(text, backend, inference=True)]
    for net in nets:
        randomize(net)
    assert not is_skipping(nets[1])
    agree(outputs(nets[1]), outputs(nets[0]))


def test_where_nothing_runs_backward_convolutions_have_the_stride() -> None:
    net = Net(read(block(normed=True)), backend=Cpu(), phase="TEST", inference=True)
    strides = {
        call.layer: tuple(call.stride) for call in net.programs[0] if call.name == "convolution"
    }
    assert strides == {"a": (1, 1), "b": (2, 2), "p": (1, 1), "q": (1, 1)}


def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    net, _ = run(net_of(SHORTCUT + RELU, HEADS), with_libraries(Cuda(graphs=False)))
    assert is_skipping(net)
