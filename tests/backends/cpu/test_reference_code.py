"""oneDNN's reference code, which takes hundreds of times as long as any other, runs for nothing
common: neither in models nor for windows of odd sizes, paddings, dilations and groups, whatever the
layout, nor for inner products on CPUs that have AVX2 alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from benchmarks.nets import MODELS
from osucaffe import net
from osucaffe.backends.cpu import Cpu
from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Tensor
from osucaffe.proto import caffe_pb2, read_net
from tests.processes import python

from .programs import NEEDS_ONEDNN, blocked, prepare

pytestmark = NEEDS_ONEDNN

DEPLOYED = sorted(path.parent.name for path in MODELS.glob("*/deploy.prototxt"))
CONVOLUTIONS = [
    "num_output: 24 kernel_size: 1 pad: 1",
    "num_output: 24 kernel_size: 1 pad: 2 stride: 2",
    "num_output: 1000 kernel_size: 1 pad: 1",
    "num_output: 20 kernel_size: 3 dilation: 3",
    "num_output: 20 kernel_size: 3 pad: 5 dilation: 2",
    "num_output: 7 kernel_h: 1 kernel_w: 5 pad_h: 1 pad_w: 0",
    "num_output: 24 kernel_size: 3 group: 3",
    "num_output: 48 kernel_size: 3 group: 24 pad: 2",
    "num_output: 24 kernel_size: 3 group: 24 dilation: 2",
    "num_output: 36 kernel_size: 1 group: 6 pad: 1",
    "num_output: 3 kernel_size: 4 stride: 3 pad: 3",
    "num_output: 1 kernel_size: 11 pad: 5",
]
POOLINGS = [
    "global_pooling: true",
    "kernel_size: 3 stride: 2",
    "kernel_size: 5 pad: 2",
    "kernel_size: 2 stride: 3 round_mode: FLOOR",
]


@pytest.fixture
def implementations(monkeypatch: pytest.MonkeyPatch):
    """What names the code of oneDNN that runs a net forward, built without memory."""
    monkeypatch.setattr(net.Net, "_place", lambda self: None)
    for name in "Arena", "first_values":
        monkeypatch.setattr(net, name, lambda *_, **__: [])

    def found(param: caffe_pb2.NetParameter) -> dict[str, str]:
        made = net.Net(param, backend=Cpu(), phase="TEST", inference=True)
        steps = made._build.steps[0]
        return {call.layer: getattr(step, "implementation", "") for call, step in steps}

    return found


def check(found: dict[str, str]) -> None:
    slow = {layer: names for layer, names in found.items() if "ref:" in names}
    assert not slow
    assert any(found.values())


def net_of(shape: tuple[int, ...], *rows: tuple[str, str, str, str]) -> caffe_pb2.NetParameter:
    """Layers behind an input x: the type, bottom, top and settings of each."""
    dims = " ".join(f"dim: {extent}" for extent in shape)
    text = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {dims} }} }} }}'
    for kind, bottom, top, settings in rows:
        text += f"""
        layer {{ name: "{top}" type: "{kind}" bottom: "{bottom}" top: "{top}"
          {kind.lower()}_param {{ {settings} }} }}"""
    return text_format.Parse(text, caffe_pb2.NetParameter())


@pytest.mark.parametrize("model", DEPLOYED)
def test_models(model: str, implementations, root: Path) -> None:
    check(implementations(read_net(root / "models" / model / "deploy.prototxt")))


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("settings", CONVOLUTIONS)
def test_convolutions_behind_blocks_of_channels(settings: str, batch: int, implementations) -> None:
    check(implementations(net_of(
        (batch, 24 if "group" in settings else 3, 31, 29),
        ("Convolution", "x", "a", "num_output: 24 kernel_size: 3"),
        ("Convolution", "a", "b", settings),
        ("Convolution", "x", "c", settings),
    )))  # fmt: skip


@pytest.mark.parametrize("channels", [8, 20, 32])
def test_filters_of_one_channel_each_have_code_of_their_own(channels: int, implementations) -> None:
    outputs = f"num_output: {channels}"
    found = implementations(net_of(
        (1, 3, 31, 29),
        ("Convolution", "x", "a", f"{outputs} kernel_size: 1"),
        ("Convolution", "a", "b", f"{outputs} kernel_size: 3 pad: 1 group: {channels}"),
        ("ReLU", "b", "relu", ""),
        ("Convolution", "relu", "c", "num_output: 16 kernel_size: 1"),
    ))  # fmt: skip
    assert found["b"].startswith("jit_dw")


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("channels", [5, 24, 1000])
@pytest.mark.parametrize("settings", POOLINGS)
def test_pooling_behind_blocks_of_channels(
    settings: str, channels: int, pool: str, implementations
) -> None:
    check(implementations(net_of(
        (1, 48, 17, 16),
        ("Convolution", "x", "a", f"num_output: {channels} kernel_size: 1 pad: 1"),
        ("Pooling", "a", "b", f"pool: {pool} {settings}"),
    )))  # fmt: skip


# C, O, extent, kernel, stride, pad, dilation, group: of nets that took minutes, or seconds.
SHAPES = {
    "SqueezeNet conv10, padded 1x1": (512, 1000, 13, 1, 1, 1, 1, 1),
    "DeepLab fc6, dilation 4 at 7x7": (512, 1024, 41, 7, 1, 12, 4, 1),
    "DeepLab, dilation 12": (512, 1024, 41, 3, 1, 12, 12, 1),
    "FCN-32s, transposed 64x64": (21, 21, 544, 64, 32, 0, 1, 1),
    "FCN-32s, transposed 63x63": (21, 21, 575, 63, 32, 0, 1, 1),
    "FCN-8s, transposed 16x16": (21, 21, 568, 16, 8, 0, 1, 1),
    "upsampling by group": (21, 21, 544, 64, 32, 0, 1, 21),
    "one channel, transposed": (1, 1, 256, 32, 16, 0, 1, 1),
    "ResNeXt": (128, 128, 56, 3, 1, 1, 1, 32),
    "ResNeXt, stride 2": (256, 256, 56, 3, 2, 1, 1, 32),
    "ShuffleNet": (240, 240, 28, 1, 1, 0, 1, 3),
    "ShuffleNet, groups beside blocks": (24, 60, 56, 1, 1, 0, 1, 3),
    "MobileNet": (64, 64, 112, 3, 2, 1, 1, 64),
    "MobileNet, dilated": (512, 512, 28, 3, 1, 2, 2, 512),
    "depthwise, not whole blocks": (60, 60, 56, 3, 1, 1, 1, 60),
    "depthwise, two filters a channel": (32, 64, 28, 3, 1, 1, 1, 32),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("row_major", [True, False])
def test_no_reference_kernel(name: str, row_major: bool) -> None:
    channels, outputs, extent, kernel, stride, pad, dilation, group = SHAPES[name]
    out = (extent + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
    program = Program()

    def image(channels: int, extent: int) -> Tensor:
        shape = (2, channels, extent, extent)
        return Tensor(shape) if row_major else blocked(program, shape)

    x, y = image(channels, extent), image(outputs, out)
    w = Tensor((outputs, channels // group, kernel, kernel), flexible=True)
    settings: dict[str, Any] = {"stride": [stride] * 2, "pad": [pad] * 2, "group": group}
    settings["dilation"] = [dilation] * 2
    made = len(program.calls)
    program.convolution(x, w, Tensor((outputs,)), y, **settings)
    program.convolution_backward_data(y, w, x, **settings)
    program.convolution_backward_filter(x, y, w, Tensor((outputs,)), **settings)
    steps = prepare(program)
    for call, step in zip(program.calls[made:], steps[made:], strict=True):
        if step is None:  # NumPy's
            assert (call.name, group > 1) == ("convolution_backward_filter", True)
            continue
        assert not any(each.startswith("ref") for each in step.implementation.split()), call.name


SCRIPT = """
from osucaffe.backends.cpu import Cpu
from osucaffe.backends.primitives import Program
from osucaffe.backends.tensor import Tensor
from tests.processes import python

def tensor(*shape, like=None):
    made = Tensor(shape, flexible=True)
    made.like = like
    return made

x, w, y = tensor(32, 2352), tensor(1000, 2352), tensor(32, 1000)
dx, dw, dy = tensor(32, 2352, like=x), tensor(1000, 2352, like=w), tensor(32, 1000, like=y)
program = Program()
program.inner_product(x, w, None, y, axis=1, transpose=False, relu=None)
program.inner_product_backward_data(dy, w, dx, axis=1, transpose=False)
program.inner_product_backward_filter(x, dy, dw, None, axis=1, transpose=False)
for step in Cpu().prepare(program.calls):
    print(step.implementation)
"""


def test_no_inner_product_takes_reference_code() -> None:
    names = python("-c", SCRIPT, ONEDNN_MAX_CPU_ISA="AVX2").stdout.splitlines()
    assert len(names) == 3
    assert not [name for name in names if "ref" in name]
