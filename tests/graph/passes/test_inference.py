"""Nets that only run forward: fewer calls, the same outputs, and weights that may still change."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import caffe_pb2, read_net

from .test_batch_norm import branch, layer

INPUT = (
    'layer { name: "x" type: "Input" top: "x" '
    "input_param { shape { dim: 2 dim: 6 dim: 9 dim: 7 } } }\n"
)
NOISE = '{ type: "gaussian" std: 0.5 }'
TOLERANCE = 1e-5


def convolution(name: str, bottom: str, top: str, settings: str = "", options: str = "") -> str:
    given = f"num_output: 6 kernel_size: 3 pad: 1 weight_filler {NOISE} bias_filler {NOISE}"
    settings = f"convolution_param {{ {given} {settings} }} {options}"
    return layer(name, "Convolution", bottom, top, settings)


def product(name: str, bottom: str, top: str, settings: str = "") -> str:
    given = f"num_output: 5 weight_filler {NOISE} bias_filler {NOISE} {settings}"
    return layer(name, "InnerProduct", bottom, top, f"inner_product_param {{ {given} }}")


def scale(bottom: str, top: str, bias: bool = True) -> str:
    bias_text = f"bias_term: true bias_filler {NOISE}" if bias else ""
    return layer(
        f"scale_{bottom}_{top}",
        "Scale",
        bottom,
        top,
        f"scale_param {{ filler {NOISE} {bias_text} }}",
    )


def norm(bottom: str, top: str, kind: str = "BatchNorm", settings: str = "") -> str:
    return layer(f"norm_{bottom}_{top}", kind, bottom, top, settings)


def relu(blob: str) -> str:
    return layer(f"relu_{blob}", "ReLU", blob, blob)


def added(bottoms: str, top: str) -> str:
    return layer(f"sum_{top}", "Eltwise", bottoms, top)


def head(name: str, bottom: str, window: str = "kernel_size: 1 stride: 2") -> str:
    """A convolution that reads one pixel of four."""
    given = f"num_output: 6 {window} weight_filler {NOISE} bias_filler {NOISE}"
    return layer(name, "Convolution", bottom, name, f"convolution_param {{ {given} }}")


def block(*, normed: bool) -> str:
    """A residual block, and the heads of the next one."""
    a, b = (norm(name, name) if normed else "" for name in "ab")
    text = convolution("a", "x", "a") + a + relu("a") + convolution("b", "a", "b") + b
    return (
        text + added("a b", "s") + relu("s") + head("p", "s") + head("q", "s") + added("p q", "t")
    )


C, D = convolution("c", "x", "c"), convolution("d", "c", "d")
SHARED = 'param { name: "w" } param { name: "b" }'
FILLERS = f"{NOISE} bias_filler {NOISE}"
NETS: dict[str, tuple[str, dict[str, int] | None]] = {
    # name: the text behind the input, and which calls are left
    "convolution, norm, scale, ReLU": (branch("a", "x", relu=True), {"convolution": 1}),
    "each with its own top": (branch("a", "x", relu=True, place="_"), {"convolution": 1}),
    "norm without scale, with a bias before": (
        convolution("c", "x", "c", "group: 3") + norm("c", "n"),
        {"convolution": 1},
    ),
    "scale alone": (
        convolution("c", "x", "c", "dilation: 2") + scale("c", "s", bias=False),
        {"convolution": 1},
    ),
    "norm of its own scale and bias": (
        C
        + norm(
            "c", "c", settings=f"batch_norm_param {{ scale_bias: true scale_filler {FILLERS} }}"
        ),
        {"convolution": 1},
    ),
    "BN of a fork": (
        C + norm("c", "n", "BN", f"bn_param {{ slope_filler {FILLERS} frozen: true }}"),
        {"convolution": 1},
    ),
    "inner product": (
        product("p", "x", "p") + norm("p", "p") + scale("p", "p"),
        {"inner_product": 1},
    ),
    "inner product, transposed": (
        product("p", "x", "p", "transpose: true bias_term: false") + norm("p", "n"),
        {"inner_product": 1},
    ),
    "norm first": (
        norm("x", "n") + scale("n", "n") + relu("n") + convolution("c", "n", "c"),
        {"batch_norm": 1, "convolution": 1},
    ),
    "a blob with two readers": (
        C + norm("c", "n") + added("c n", "s"),
        {"batch_norm": 1, "convolution": 1},
    ),
    "weights of two convolutions": (
        convolution("c", "x", "c", options=SHARED)
        + norm("c", "n")
        + convolution("d", "n", "d", options=SHARED)
        + norm("d", "e")
        + added("n e", "s"),
        {"convolution": 2, "batch_norm": 1},  # the sum is an output
    ),
    "sum with a ReLU": (
        C
        + relu("c")
        + convolution("b", "c", "b")
        + convolution("d", "b", "d")
        + added("c d", "s")
        + relu("s")
        + convolution("e", "s", "e"),
        {"convolution": 4},
    ),
    "a convolution's input is the other term": (
        C + D + added("c d", "s") + convolution("e", "s", "e"),
        {"convolution": 3, "sum": 1},
    ),
    "the other term is wanted later": (
        C + D + added("d c", "s") + added("s c", "t"),
        {"convolution": 2, "sum": 2},
    ),
    "Dropout with a top of its own": (
        C + layer("d", "Dropout", "c", "d") + layer("e", "ELU", "d", "d") + product("p", "d", "p"),
        {"convolution": 1, "copy": 1, "elementwise": 1, "inner_product": 1},
    ),
    "Dropout before an inner product": (
        C + layer("d", "Dropout", "c", "d") + product("p", "d", "p"),
        {"convolution": 1, "inner_product": 1},
    ),
    "a stride moves through a block": (
        block(normed=True),
        {"convolution": 4, "max_pooling": 1, "sum": 1},
    ),
    "a stride moves through a sum": (
        block(normed=False),
        {"convolution": 4, "max_pooling": 1, "sum": 1},
    ),
    "a stride moves through a pooling": (
        C
        + layer("m", "Pooling", "c", "m", "pooling_param { kernel_size: 1 stride: 2 }")
        + added("m m", "s"),
        {"convolution": 1, "sum": 1},
    ),
    "two strides": (
        C + head("p", "c") + head("q", "c").replace("stride: 2", "stride: 3"),
        {"convolution": 3},
    ),
    "LRN and pooling": (
        C
        + layer("l", "LRN", "c", "l", "lrn_param { local_size: 3 alpha: 0.1 }")
        + layer("m", "Pooling", "l", "m", "pooling_param { kernel_size: 3 stride: 2 }")
        + layer("w", "LRN", "m", "w", "lrn_param { local_size: 3 norm_region: WITHIN_CHANNEL }"),
        None,
    ),
}


def bent(bottom: str, top: str, bias: bool = False, slope: float = 0) -> str:
    """ReLU(x) + scale(ReLU(scale(x)))."""
    straight, other = f"{bottom}_1", f"{bottom}_2"
    return (
        layer(
            f"straight_{bottom}",
            "ReLU",
            bottom,
            straight,
            f"relu_param {{ negative_slope: {slope} }}",
        )
        + scale(bottom, other, bias=bias)
        + relu(other)
        + scale(other, other, bias=False)
        + added(f"{straight} {other}", top)
    )


def read(text: str) -> caffe_pb2.NetParameter:
    return text_format.Parse(INPUT + text, caffe_pb2.NetParameter())


def randomize(net: Net, seed: int = 3) -> None:
    """Give parameters values that make each effect visible, and activations that stay near 1."""
    draw = np.random.default_rng(seed)
    for each in net.layers:
        for index, blob in enumerate(each.parameters):
            values = draw.normal(size=blob.shape) * np.sqrt(1.5 / np.prod(blob.shape[1:]))
            if len(blob.shape) == 1 or each.type in ("BatchNorm", "BN", "Scale"):
                values = draw.uniform(0.5, 1.5, blob.shape)
            if index == 2 and each.type == "BatchNorm":
                values = np.full(blob.shape, 1.25)
            net.backend.write(blob.data, values)
    net.refresh()


def outputs(net: Net, seed: int = 4) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    for name in net.inputs:
        net.write(name, draw.normal(size=net.blobs[name].shape).astype(np.float32))
    net.forward()
    return {name: net.read(name) for name in net.outputs}


def agree(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(
            found[name], values, rtol=TOLERANCE, atol=TOLERANCE * np.abs(values).max()
        )


@pytest.mark.parametrize("onednn", [True, False], ids=["oneDNN", "NumPy"])
@pytest.mark.parametrize("name", NETS)
def test_outputs_are_those_of_the_net_as_it_is(name: str, onednn: bool) -> None:
    text, left = NETS[name]
    backend = Cpu(onednn=onednn)
    plain = Net(read(text), backend=backend, phase="TEST", inspectable=True)
    fast = Net(read(text), backend=backend, phase="TEST", inference=True)
    beside = Net(read(text), backend=backend, phase="TEST", inference=True, share=plain)
    for net in plain, fast:
        randomize(net)
    wanted = outputs(plain)
    agree(outputs(fast), wanted)
    agree(outputs(beside), wanted)
    if left is not None:
        assert Counter(call.name for call in fast.programs[0]) == left
    for net in plain, fast:
        randomize(net, seed=5)
    beside.refresh()
    assert any(np.abs(wanted[name] - plain.read(name)).max() == 0 for name in wanted)
    wanted = outputs(plain)
    agree(outputs(fast), wanted)
    agree(outputs(beside), wanted)


BENT = np.array([[-1, -0.5, 0, 2, -2, 1], [-0.25, 0.5, 3, -0.5, 0, 2]], np.float32)
"""The two scales of each channel: what the ReLU behind the first lets pass is negative, as in a
PReLU, or positive, or nothing."""


SWAPPED = '"x_1" bottom: "x_2"', '"x_2" bottom: "x_1"'


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (bent("x", "p"), {"broadcast": 1, "batch_norm": 1}),
        (bent("x", "p").replace(*SWAPPED), {"broadcast": 1, "batch_norm": 1}),
        (
            bent("x", "p") + bent("p", "q"),
            {"broadcast": 2, "batch_norm": 2},
        ),
        (bent("x", "p", bias=True), {"relu": 2, "batch_norm": 2, "sum": 1}),
        (bent("x", "p", slope=0.5), {"relu": 2, "batch_norm": 2, "sum": 1}),
        (bent("x", "p") + scale("x_1", "q"), {"relu": 2, "batch_norm": 3, "sum": 1}),
        (scale("x", "y") + bent("y", "p").replace("y_1", "y"), None),  # x changes between
        (bent("x", "p").replace('"x_1" bottom: "x_2"', '"x_2" bottom: "x_2"'), None),
    ],
)
def test_prelu_of_two_relus(text: str, left: dict[str, int] | None) -> None:
    backend = Cpu()
    plain = Net(read(text), backend=backend, phase="TEST", inspectable=True)
    fast = Net(read(text), backend=backend, phase="TEST", inference=True, share=plain)
    for values in BENT, 3 * BENT[::-1]:
        scales = [each for each in plain.layers if each.type == "Scale"]
        for index, each in enumerate(scales):
            for blob in each.parameters:
                backend.write(blob.data, values[index % 2])
        for net in plain, fast:
            net.refresh()
            net.write("x", np.arange(-378, 378).reshape(2, 6, 9, 7) / 4)
            net.forward()
        for name in plain.outputs:
            np.testing.assert_array_equal(fast.read(name), plain.read(name))
    if left is not None:
        assert Counter(call.name for call in fast.programs[0]) == left


MODELS = (
    ("lenet", 7),
    ("cifar10_full", 10),
    ("edsr_baseline", 38),
    ("googlenet", 84),
    pytest.param("resnet50", 60, marks=pytest.mark.slow),
)


@pytest.mark.parametrize(("model", "calls"), MODELS)
def test_outputs_of_models(model: str, calls: int, root: Path) -> None:
    param = read_net(root / "models" / model / "deploy.prototxt")
    param.layer[0].input_param.shape[0].dim[0] = 1
    if model == "edsr_baseline":
        param.layer[0].input_param.shape[0].dim[2:] = 9, 8
    backend = Cpu()
    plain = Net(param, backend=backend, phase="TEST", inspectable=True, gradients=False)
    fast = Net(param, backend=backend, phase="TEST", inference=True, share=plain)
    randomize(plain)
    agree(outputs(fast), outputs(plain))
    assert len(fast.programs[0]) == calls


def test_wanted_blobs_are_kept() -> None:
    text = branch("a", "x", relu=True, place="_") + product("p", "a__", "p")
    backend = Cpu()
    plain = Net(read(text), backend=backend, phase="TEST", inspectable=True)
    fast = Net(
        read(text), backend=backend, phase="TEST", inference=True, share=plain, wanted=["a", "a_"]
    )
    randomize(plain)
    agree(outputs(fast), outputs(plain))
    for name in "a", "a_":
        np.testing.assert_allclose(fast.read(name), plain.read(name), rtol=1e-5, atol=1e-5)


def test_samples_are_those_of_the_net_as_it_is() -> None:
    settings = "dropout_param { sample_weights_test: true }"
    text = branch("a", "x", relu=True) + layer("d", "Dropout", "a", "d", settings)
    text += product("p", "d", "p")
    backend = Cpu()
    plain = Net(read(text), backend=backend, phase="TEST", inspectable=True, seed=3)
    fast = Net(read(text), backend=backend, phase="TEST", inference=True, seed=3)
    for net in plain, fast:
        randomize(net)
    first, second = outputs(plain)["p"], outputs(plain)["p"]
    assert np.abs(first - second).max() > 0.1
    for wanted in first, second:
        agree(outputs(fast), {"p": wanted})


def test_other_shapes_find_the_folded_weights() -> None:
    text = branch("a", "x", relu=True) + norm("a", "n") + layer("r", "ReLU", "n", "n")
    backend = Cpu()
    plain = Net(read(text), backend=backend, phase="TEST", inspectable=True)
    fast = Net(read(text), backend=backend, phase="TEST", inference=True, share=plain)
    randomize(plain)
    agree(outputs(fast), outputs(plain))
    assert fast.constants is not None
    before = dict(fast.constants._made)
    for net in plain, fast:
        net.reshape({"x": (3, 6, 5, 5)})
    agree(outputs(fast), outputs(plain))
    assert not fast.constants.stale
    assert before == fast.constants._made


def test_shapes_that_come_again_are_remembered() -> None:
    text = branch("a", "x", relu=True) + product("p", "a", "p").replace("num", "axis: 2 num")
    text += layer("y", "Input", "", "y", "input_param { shape { dim: 1 } }").replace(" bottom", "")
    backend = Cpu()
    fast = Net(read(text), backend=backend, phase="TEST", inference=True)
    randomize(fast)
    first, blobs, memory = outputs(fast), fast.blobs, fast.pool.size
    fast.reshape({"x": (5, 6, 9, 7)})
    larger = outputs(fast)
    assert fast.pool.size > memory
    fast.write("y", np.full(1, 7.0))
    fast.reshape({"x": (2, 6, 9, 7)})
    assert fast.blobs is blobs
    assert fast.read("y") == 7.0
    agree(outputs(fast), first)
    fast.reshape({"x": (5, 6, 9, 7)})
    agree(outputs(fast), larger)
    for count in range(6, 20):
        fast.reshape({"x": (count, 6, 9, 7)})
    fast.reshape({"x": (5, 6, 9, 7)})
    agree(outputs(fast), larger)


def test_a_wanted_blob_must_be_there() -> None:
    with pytest.raises(UserError, match='no blob "z": it has x, p'):
        Net(read(product("p", "x", "p")), backend=Cpu(), inference=True, wanted=["z"])
