"""Nets as ONNX models: what onnxruntime computes with them is what we compute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cpu import Cpu
from osucaffe.cli import main
from osucaffe.data.pictures.preprocessing import find_preprocessing
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.onnx import OPSET, for_any_batch, to_onnx
from osucaffe.proto import caffe_pb2, parse_text, read_net, write_mean, write_weights
from tests.layers.nets import build, inputs
from tests.layers.nets import error as gap
from tests.layers.test_catalogue import CAFFE
from tests.layers.test_gradients import CASES

checker = pytest.importorskip("onnx.checker")
onnxruntime = pytest.importorskip("onnxruntime")

TOLERANCE = 1e-5
MODELS = Path(__file__).parents[2] / "models"
SMALL = ("cifar10_full", "cifar10_quick", "edsr_baseline", "lenet", "mnist_autoencoder",
         "mnist_siamese")  # fmt: skip
"""The nets of models/ that take no second."""
NOT = {"Filter", "Im2col", "LSTM", "LSTMUnit", "RNN", "SoftmaxWithLoss"}
"""Caffe's layer types for which there is nothing in ONNX, or not yet."""
OF_ONE_SIZE = {"BatchReindex", "Bias", "Flip", "Gather", "InnerDistance", "Parameter", "Scale"}
"""Those of which some nodes depend on the batch size, besides losses."""
random = np.random.default_rng(8)


def session(content: bytes) -> Any:
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def errors(net: Net, model: Any, labels: Any = ()) -> dict[str, float]:
    """Of each output, for random inputs above 0, but for labels."""
    for name in net.inputs:
        if name not in labels:
            net.write(name, random.random(net.blobs[name].shape) + 0.1)
    feeds = {name: net.read(name).astype(np.float32) for name in net.inputs}
    net.forward()
    found = session(model.SerializeToString()).run(None, feeds)
    return {
        name: gap(values, net.read(name)) for name, values in zip(net.outputs, found, strict=True)
    }


@pytest.mark.parametrize(("type_", "shapes", "text", "options"), CASES)
def test_layers(type_: str, shapes: Any, text: str, options: Any) -> None:
    """Those of the gradients' table, as they are in the TEST phase."""
    net = build(inputs(shapes) + text, Cpu(), inspectable=True, gradients=False)
    if type_ == "Silence":
        with pytest.raises(UserError, match="has no outputs"):
            to_onnx(net)
        return
    try:
        model = to_onnx(net)
    except UserError as error:  # which those of forks may be
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert re.match('output ".*" cannot be exported: .*"op"', refusal)
        draws = "STOCHASTIC" in text or "sample_weights_test" in text
        assert type_ in NOT or type_ not in CAFFE or draws
        return
    labels = {name: n for name, n in options["labels"].items() if name in net.blobs}
    for name, count in labels.items():
        net.write(name, random.integers(count, size=net.blobs[name].shape))
    found = errors(net, model, labels)
    assert max(found.values()) <= TOLERANCE, found
    # The second bottom has no axis of a batch: weights, or what gives a size.
    fixed = type_ in ("InnerProduct", "Interp") and len(net.inputs) > 1
    check_any_batch(net, labels, may_not=fixed or type_ in OF_ONE_SIZE or "Loss" in type_)


def check_any_batch(net: Net, labels: Any, *, may_not: bool = False) -> None:
    """A model for any batch size is right for those it was not made with."""
    model = for_any_batch(net)
    if model is None:
        assert may_not
        return
    checker.check_model(model, full_check=True)
    for size in (1, 7):
        net.reshape({name: (size, *net.blobs[name].shape[1:]) for name in net.inputs})
        for name, count in labels.items():
            net.write(name, random.integers(count, size=net.blobs[name].shape))
        found = errors(net, model, labels)
        assert max(found.values()) <= TOLERANCE, (size, found)


@pytest.mark.parametrize(
    "settings",
    [
        "kernel_size: 3 stride: 2", "kernel_size: 2 stride: 2 pad: 1",
        "kernel_size: 3 stride: 2 pad: 1", "kernel_size: 3 stride: 3 pad: 2",
        "kernel_size: 3 stride: 2 round_mode: FLOOR",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_windows_end_where_caffes_do(method: str, settings: str) -> None:
    text = inputs({"x": (2, 3, 8, 7)})
    text += 'layer { name: "op" type: "Pooling" bottom: "x" top: "y" '
    text += f"pooling_param {{ {settings} pool: {method} }} }}"
    net = build(text, Cpu(), inspectable=True, gradients=False)
    assert errors(net, to_onnx(net))["y"] <= TOLERANCE


def test_a_mask_and_layers_in_place() -> None:
    text = inputs({"x": (2, 3, 6, 6)}) + (
        'layer { name: "pool" type: "Pooling" bottom: "x" top: "y" top: "m" '
        "pooling_param { kernel_size: 2 stride: 2 } }"
        'layer { name: "a" type: "ReLU" bottom: "y" top: "y" relu_param { negative_slope: 0.1 } }'
        'layer { name: "b" type: "Power" bottom: "y" top: "y" power_param { power: 3 } }'
    )
    net = build(text, Cpu(), inspectable=True, gradients=False)
    model = to_onnx(net)
    assert [each.name for each in model.graph.output] == ["m", "y"]
    assert max(errors(net, model).values()) <= TOLERANCE


@pytest.mark.parametrize("name", SMALL)
def test_models(name: str) -> None:
    net = Net(read_net(MODELS / name / "deploy.prototxt"), phase="TEST", backend=Cpu(),
              inspectable=True, gradients=False, seed=4)  # fmt: skip
    net.reshape({each: (2, *net.blobs[each].shape[1:]) for each in net.inputs})
    model = to_onnx(net)
    assert model.opset_import[0].version == OPSET >= 17
    found = errors(net, model)
    assert max(found.values()) <= TOLERANCE, found
    check_any_batch(net, {})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deploy = MODELS / "lenet" / "deploy.prototxt"
    net = Net(read_net(deploy), phase="TEST", backend=Cpu(), seed=11)
    write_weights(tmp_path / "w.caffemodel", net.to_proto())
    words = ["export", str(deploy), "--weights", str(tmp_path / "w.caffemodel")]
    words += ["--onnx", str(tmp_path / "net.onnx")]
    for more, told, sizes in (
        ([], "opset 17, any batch", (1, 7)),
        (["--batch", "3"], "opset 17, batch 3", (3,)),
    ):
        assert main([*words, *more]) == 0
        assert told in capsys.readouterr().out
        whole = session((tmp_path / "net.onnx").read_bytes())
        assert whole.get_inputs()[0].shape[0] == (3 if more else "batch")
        for size in sizes:
            images = random.random((size, 1, 28, 28), np.float32)
            [found] = whole.run(None, {"data": images})
            net.reshape({"data": images.shape})
            net.write("data", images)
            net.forward()
            assert gap(found, net.read("prob")) <= TOLERANCE


def test_a_net_of_one_batch_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = 'layer { name: "op" type: "BatchReindex" bottom: "x" bottom: "at" top: "y" }'
    deploy = tmp_path / "deploy.prototxt"
    deploy.write_text(inputs({"x": (4, 2), "at": (3,)}) + body)
    assert main(["export", str(deploy), "--onnx", str(tmp_path / "net.onnx")]) == 0
    assert "fixed shapes, as nodes depend on them" in capsys.readouterr().out
    feeds = {"x": random.random((4, 2), np.float32), "at": np.array([3, 0, 3], np.float32)}
    [found] = session((tmp_path / "net.onnx").read_bytes()).run(None, feeds)
    assert (found == feeds["x"][[3, 0, 3]]).all()


def test_what_cannot_be_exported_is_named() -> None:
    net = Net(read_net(MODELS / "mnist_siamese" / "deploy.prototxt"), phase="TEST", backend=Cpu(),
              inspectable=True, gradients=False)  # fmt: skip
    assert to_onnx(net)
    text = inputs({"x": (2, 3), "l": (2,)}) + (
        'layer { name: "score" type: "Accuracy" bottom: "x" bottom: "l" top: "y" }'
    )
    net = build(text, Cpu(), inspectable=True, gradients=False)
    with pytest.raises(UserError, match=r'output "y" .*"score".*\(accuracy\); give a net for dep'):
        to_onnx(net)


@pytest.mark.parametrize("mean", ["mean_value: 10 mean_value: 20 mean_value: 30", "mean_file"])
def test_a_model_that_preprocesses(tmp_path: Path, mean: str) -> None:
    """Bytes in, and the same scores; the metadata has the names of the classes."""
    if mean == "mean_file":
        write_mean(tmp_path / "mean", random.random((3, 8, 8), np.float32) * 99)
        mean = f'mean_file: "{tmp_path / "mean"}"'
    body = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
      inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }"""
    deploy = tmp_path / "deploy.prototxt"
    deploy.write_text(f"{inputs({'data': (2, 3, 6, 6)})} {body}")
    net = Net(read_net(deploy), phase="TEST", backend=Cpu(), seed=11)
    weights = net.to_proto()
    data = weights.layer.add(name="read", type="Data", top=["data", "label"])
    data.transform_param.CopyFrom(
        parse_text(f"scale: 0.5 {mean}", caffe_pb2.TransformationParameter)
    )
    write_weights(tmp_path / "w.caffemodel", weights)
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    words = ["export", str(deploy), "--weights", str(tmp_path / "w.caffemodel"), "--onnx"]
    assert main([*words, str(tmp_path / "net.onnx"), "--with_preprocessing"]) == 0
    whole = session((tmp_path / "net.onnx").read_bytes())
    notes = whole.get_modelmeta().custom_metadata_map
    assert notes == {
        "classes": '["cat", "dog"]',
        "input": "bytes 0..255, channels blue, green, red",
    }
    records = random.integers(0, 256, (2, 3, 8, 8)).astype(np.float32)
    settings = find_preprocessing(weights, "w")
    subtracted = settings.mean()
    subtracted = subtracted[:, None, None] if subtracted.ndim == 1 else subtracted
    net.write("data", ((records - subtracted) * 0.5)[:, :, 1:7, 1:7])
    net.forward()
    [found] = whole.run(None, {"data": np.ascontiguousarray(records[:, :, 1:7, 1:7])})
    assert gap(found, net.read("ip")) <= TOLERANCE
    assert main([*words, str(tmp_path / "plain.onnx")]) == 0
    plain = session((tmp_path / "plain.onnx").read_bytes())
    assert "scale 0.5" in plain.get_modelmeta().custom_metadata_map["input"]
    write_weights(tmp_path / "w.caffemodel", net.to_proto())
    assert main([*words, str(tmp_path / "net.onnx"), "--with_preprocessing"]) == 1
