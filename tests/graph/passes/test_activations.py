"""Convolutions and inner products that end with an activation give what the two calls give."""

from __future__ import annotations

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.formula import ELU, PRELU, RELU6
from osucaffe.net import Net

from ...backends.cpu.programs import NEEDS_ONEDNN
from .test_batch_norm import branch, layer
from .test_inference import convolution, outputs, product, randomize, read

TOLERANCE = 1e-6


def elu(bottom: str, top: str, alpha: float = 0.7) -> str:
    return layer(f"e_{bottom}", "ELU", bottom, top, f"elu_param {{ alpha: {alpha} }}")


def prelu(bottom: str, top: str, settings: str = "") -> str:
    return layer(f"p_{bottom}", "PReLU", bottom, top, f"prelu_param {{ {settings} }}")


def relu6(bottom: str, top: str, settings: str = "n: 0.5") -> str:
    return layer(f"r_{bottom}", "ReLU6", bottom, top, f"relu6_param {{ {settings} }}")


def summed(top: str) -> str:
    return layer("sum", "Eltwise", "c", top).replace('bottom: "c"', 'bottom: "c" bottom: "d"')


def set_values(net: Net, seed: int) -> None:
    """Parameters of both signs: half of what enters an activation is negative."""
    randomize(net, seed)
    draw = np.random.default_rng(seed)
    for each in net.layers:
        for blob in each.parameters:
            if len(blob.shape) < 2 and each.type in ("Convolution", "InnerProduct", "PReLU"):
                net.backend.write(blob.data, draw.uniform(-1, 1, blob.shape))
    net.refresh()


NETS = {
    # name: the text behind the input, and how many activations go
    "in place": (convolution("c", "x", "c") + elu("c", "c") + product("p", "c", "p"), 1),
    "a top of its own": (convolution("c", "x", "c") + elu("c", "e") + prelu("e", "f"), 1),
    "a ReLU6": (convolution("c", "x", "c") + relu6("c", "c"), 1),
    "a ReLU6 with a slope": (
        product("p", "x", "p") + relu6("p", "p", "n: 0.3 negative_slope: 0.2"),
        1,
    ),
    "slopes of channels": (convolution("c", "x", "c") + prelu("c", "c"), 1),
    "one slope": (convolution("c", "x", "c") + prelu("c", "p", "channel_shared: true"), 1),
    "groups": (convolution("c", "x", "c", "group: 3") + prelu("c", "c"), 1),
    "dilated": (convolution("c", "x", "c", "dilation: 2") + elu("c", "c"), 1),
    "products": (
        product("p", "x", "p") + prelu("p", "q") + product("r", "q", "r") + elu("r", "s"),
        2,
    ),
    "slopes along another axis": (product("p", "x", "p", "axis: 2") + prelu("p", "p"), 1),
    "behind a normalization": (branch("a", "x", relu=False) + prelu("a", "b"), 1),
    "behind a ReLU": (convolution("c", "x", "c") + layer("r", "ReLU", "c", "c") + elu("c", "c"), 0),
    "read by another, too": (
        convolution("c", "x", "c") + elu("c", "e") + product("p", "c", "p"),
        0,
    ),
    "behind a sum": (
        convolution("c", "x", "c")
        + convolution("d", "x", "d")
        + summed("s")
        + elu("s", "s")
        + product("p", "s", "p"),
        1,
    ),
}


@pytest.mark.parametrize("onednn", [pytest.param(True, marks=NEEDS_ONEDNN), False])
@pytest.mark.parametrize("name", NETS)
def test_outputs_are_those_of_the_two_calls(name: str, onednn: bool) -> None:
    text, activations = NETS[name]
    fused, apart = Cpu(onednn=onednn), Cpu(onednn=onednn)
    fused.activations, apart.activations = frozenset((ELU, PRELU, RELU6)), frozenset()
    plain = Net(read(text), backend=fused, phase="TEST", inspectable=True)
    nets = [
        Net(read(text), backend=backend, phase="TEST", inference=True) for backend in (fused, apart)
    ]
    assert len(nets[1].programs[0]) - len(nets[0].programs[0]) == activations
    for seed in 3, 5:  # other slopes, too
        for net in plain, *nets:
            randomize(net, seed)
        wanted, *found = (outputs(net) for net in (plain, *nets))
        for each in found:
            for blob, values in wanted.items():
                np.testing.assert_allclose(
                    each[blob], values, rtol=TOLERANCE, atol=10 * TOLERANCE * np.abs(values).max()
                )
        for blob in wanted:
            bound = TOLERANCE * np.abs(wanted[blob]).max()
            np.testing.assert_allclose(found[0][blob], found[1][blob], rtol=0, atol=bound)


@NEEDS_ONEDNN
def test_the_library_applies_them() -> None:
    text = convolution("c", "x", "c") + prelu("c", "d") + convolution("e", "d", "e") + elu("e", "e")
    net = Net(read(text), backend=Cpu(), phase="TEST", inference=True)
    assert [call.name for call in net.programs[0]] == ["convolution"] * 2
    fused = [[f"{each.name} of {each.layer}" for each in call.fused] for call in net.programs[0]]
    assert fused == [["broadcast of p_c"], ["elementwise of e_e"]]
    assert all("," not in call.implementation for call in net.programs[0])


@NEEDS_ONEDNN
def test_nan_stays_behind_a_relu6() -> None:
    net = Net(
        read(convolution("c", "x", "c") + relu6("c", "c")),
        backend=Cpu(), phase="TEST", inference=True,
    )  # fmt: skip
    net.write("x", np.full(net.blobs["x"].shape, np.nan))
    net.forward()
    assert np.isnan(net.read("c")).all()


@NEEDS_ONEDNN
def test_a_blob_that_is_looked_at_stays() -> None:
    text = convolution("c", "x", "c") + elu("c", "e")
    net = Net(read(text), backend=Cpu(), phase="TEST", inference=True, wanted=["c"])
    outputs(net)
    values = net.read("c")
    expected = np.where(values > 0, values, 0.7 * np.expm1(values))
    np.testing.assert_allclose(net.read("e"), expected, rtol=1e-5, atol=1e-6)
