"""oneDNN's reference code, which takes hundreds of times as long as any other, runs for nothing
common: neither in models nor for windows of odd sizes, paddings, dilations and groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format

from benchmarks.nets import MODELS
from osucaffe import net
from osucaffe.backends.cpu import Cpu
from osucaffe.proto import caffe_pb2, read_net

pytestmark = pytest.mark.skipif(Cpu().onednn is None, reason="there is no oneDNN")

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


@pytest.mark.parametrize("model", DEPLOYED)
def test_models(model: str, implementations, root: Path) -> None:
    check(implementations(read_net(root / "models" / model / "deploy.prototxt")))


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("settings", CONVOLUTIONS)
def test_convolutions_behind_blocks_of_channels(settings: str, batch: int, implementations) -> None:
    text = f"""
    layer {{ name: "x" type: "Input" top: "x"
      input_param {{ shape {{ dim: {batch} dim: 3 dim: 31 dim: 29 }} }} }}
    layer {{ name: "a" type: "Convolution" bottom: "x" top: "a"
      convolution_param {{ num_output: 24 kernel_size: 3 }} }}
    layer {{ name: "b" type: "Convolution" bottom: "a" top: "b" convolution_param {{
      {settings} }} }}
    layer {{ name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param {{
      {settings} }} }}
    """
    text = text if "group" not in settings else text.replace("dim: 3 ", "dim: 24 ")
    check(implementations(text_format.Parse(text, caffe_pb2.NetParameter())))


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize("channels", [5, 24, 1000])
@pytest.mark.parametrize("settings", POOLINGS)
def test_pooling_behind_blocks_of_channels(
    settings: str, channels: int, pool: str, implementations
) -> None:
    text = f"""
    layer {{ name: "x" type: "Input" top: "x"
      input_param {{ shape {{ dim: 1 dim: 48 dim: 17 dim: 16 }} }} }}
    layer {{ name: "a" type: "Convolution" bottom: "x" top: "a"
      convolution_param {{ num_output: {channels} kernel_size: 1 pad: 1 }} }}
    layer {{ name: "b" type: "Pooling" bottom: "a" top: "b"
      pooling_param {{ pool: {pool} {settings} }} }}
    """
    check(implementations(text_format.Parse(text, caffe_pb2.NetParameter())))
