"""`oc.Net`: arrays in and out, shapes that follow, blobs and parameters, what is wrong, threads."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import osucaffe as oc
from osucaffe.backends.cpu import Cpu
from osucaffe.net import Net as Engine
from osucaffe.proto import NetParameter, parse_text, read_net
from osucaffe.pycaffe import draw

TEXT = """
name: "small"
layer { name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "norm" }
layer { name: "relu" type: "ReLU" bottom: "norm" top: "norm" }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }
"""
X = np.random.default_rng(5).normal(size=(3, 3, 8, 8)).astype(np.float32)


@pytest.fixture
def net() -> oc.Net:
    made = oc.Net(TEXT, threads=1)
    made.params["norm"][2] = 1
    made.params["norm"][1] = np.arange(1, 5)
    return made


def all_blobs(net: oc.Net, x: np.ndarray) -> dict[str, np.ndarray]:
    """What the engine computes with every blob in its own memory."""
    param = parse_text(TEXT, NetParameter)
    engine = Engine(param, backend=Cpu(threads=1), phase="TEST", inspectable=True)
    engine.load(net.engine.to_proto())
    engine.reshape({"data": x.shape})
    engine.write("data", x)
    engine.forward()
    return {name: engine.read(name) for name in ("conv", "norm", "fc", "prob")}


def test_it_takes_the_shape_of_its_input_and_returns_copies(net: oc.Net) -> None:
    first = net(data=X)["prob"]
    kept = first.copy()
    assert first.shape == (3, 5)
    one = net(data=X[:1])["prob"]
    large = net(data=np.zeros((2, 3, 20, 11), np.uint8))["prob"]
    assert (one.shape, large.shape) == ((1, 5), (2, 5))
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_allclose(one, first[:1], atol=1e-6)
    np.testing.assert_allclose(first, all_blobs(net, X)["prob"], atol=1e-6)
    np.testing.assert_array_equal(net(data=X.tolist())["prob"], first)
    np.testing.assert_array_equal(net()["prob"], first)


def test_a_blob_that_is_not_computed_is_computed_when_it_is_looked_at(net: oc.Net) -> None:
    given = X.copy()
    net(data=given)
    given[...] = 0  # the net has its own copy
    expected = all_blobs(net, X)
    for name in ("norm", "conv", "fc"):
        np.testing.assert_allclose(net.blobs[name].numpy(), expected[name], atol=1e-6)
    net(data=X[1:])
    assert net.blobs["norm"].shape == (2, 4, 6, 6)
    np.testing.assert_allclose(net.blobs["norm"], expected["norm"][1:], atol=1e-6)
    np.testing.assert_array_equal(net.blobs["data"], X[1:])


def test_parameters_are_read_and_assigned(net: oc.Net) -> None:
    before = net(data=X)["prob"]
    net.blobs["conv"].numpy()  # another net of the engine runs from here on
    fc = net.params["fc"]
    weight = fc.weight.numpy()
    assert weight.shape == fc[0].shape == (5, 4)
    assert len(fc) == 2
    fc.weight = 0
    np.testing.assert_allclose(net(data=X)["prob"], 0.2)
    fc.bias[1] = 50
    assert net(data=X)["prob"].argmax(axis=1).tolist() == [1, 1, 1]
    fc[0][...], fc[1] = weight, np.zeros(5)
    np.testing.assert_allclose(net(data=X)["prob"], before, rtol=1e-6)
    net.params["conv"].weight[0] = 0  # folded with the normalization behind it
    np.testing.assert_allclose(net(data=X)["prob"], all_blobs(net, X)["prob"], atol=1e-6)


def test_parameters_are_numbers(net: oc.Net) -> None:
    weight = net.params["fc"].weight
    before = weight.numpy()
    assert (weight * 2 == 2 * before).all()
    assert weight.dtype == np.mean(weight).dtype == np.float32
    net.params["fc"].weight *= 2
    np.testing.assert_array_equal(net.params["fc"].weight, 2 * before)
    net.blobs["data"][...] = X[:2]
    net.blobs["data"][0] += 1
    np.testing.assert_array_equal(net.blobs["data"], [X[0] + 1, X[1]])


def test_memory_is_passed_on_without_a_copy(net: oc.Net) -> None:
    net.blobs["data"][...] = X[:2]
    net.blobs["data"][1, 0] = 7
    prob = net()["prob"]
    seen = np.from_dlpack(net.blobs["prob"])
    np.testing.assert_array_equal(seen, prob)
    net(data=X[:2])
    assert (seen[1] != prob[1]).all()
    np.testing.assert_array_equal(np.asarray(net.blobs["prob"], np.float64), seen)
    assert not hasattr(net.blobs["prob"], "__cuda_array_interface__")


class Foreign:
    """An array of a library that NumPy does not know, but DLPack does."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __dlpack__(self, **options: object) -> object:
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.values.__dlpack_device__()

    def __array_namespace__(self) -> type[Foreign]:
        return Foreign

    @classmethod
    def from_dlpack(cls, values: np.ndarray) -> Foreign:
        return cls(values)


def test_arrays_of_other_libraries_come_back_as_they_came(net: oc.Net) -> None:
    prob = net(data=Foreign(X))["prob"]
    assert isinstance(prob, Foreign)
    np.testing.assert_array_equal(prob.values, net(data=X)["prob"])


def test_weights_are_saved_and_loaded(net: oc.Net, tmp_path: Path) -> None:
    expected = net(data=X)["prob"]
    for path in (tmp_path / "net.caffemodel", tmp_path / "net.h5"):
        net.save(path)
        np.testing.assert_array_equal(oc.Net(TEXT, path, threads=1)(data=X)["prob"], expected)
    copied = oc.Net(parse_text(TEXT, NetParameter), [net], threads=1)
    np.testing.assert_array_equal(copied(data=X)["prob"], expected)
    assert copied.load(tmp_path / "net.h5") == ""


def test_a_copy_has_the_weights_and_no_more_in_common(net: oc.Net) -> None:
    expected = net(data=X)["prob"]
    for copied in copy.deepcopy(net), pickle.loads(pickle.dumps(net)):
        np.testing.assert_array_equal(copied(data=X)["prob"], expected)
        copied.params["fc"].weight = 0
    np.testing.assert_array_equal(net(data=X)["prob"], expected)
    assert copied.engine.backend.threads == 1  # type: ignore[attr-defined]


def test_nets_whose_passes_differ_have_all_blobs(root: Path) -> None:
    layer = 'layer { name: "d" type: "DummyData" top: "data" dummy_data_param { shape { dim: 2 '
    layer += 'dim: 3 dim: 8 dim: 8 } data_filler { type: "gaussian" } } }'
    net = oc.Net(TEXT.replace("\n".join(TEXT.splitlines()[2:4]), layer), threads=1)
    prob = net()["prob"]
    np.testing.assert_array_equal(net.blobs["fc"].numpy().argmax(1), prob.argmax(1))
    np.testing.assert_array_equal(net.blobs["prob"], prob)
    in_place = TEXT.replace('bottom: "data" top: "conv"', 'bottom: "x" top: "conv"').replace(
        'layer { name: "conv"',
        'layer { name: "twice" type: "Power" bottom: "data" top: "data" power_param { scale: 2 } }'
        'layer { name: "x" type: "Power" bottom: "data" top: "x" } layer { name: "conv"',
    )
    net = oc.Net(in_place, threads=1)
    net(data=X)
    np.testing.assert_allclose(net.blobs["x"], 2 * X, rtol=1e-6)
    train = oc.Net(root / "models/lenet/deploy.prototxt", phase="TRAIN", threads=1)
    assert train(data=np.zeros((1, 1, 28, 28)))["prob"].shape == (1, 10)


def test_what_is_seen_of_it(net: oc.Net) -> None:
    text = repr(net)
    assert 'Net "small", TEST: 7 layers, 146 parameters in 3 of them' in text
    assert [*map(str.split, text.splitlines()[4:6])] == [
        ["data", "Input", "2x3x8x8"],
        ["conv", "Convolution", "2x4x6x6", "112", "0.0161", "MFLOP"],
    ]
    assert "<td" in net._repr_html_()
    assert repr(net.blobs["fc"]) == 'Blob "fc" (2x5)'
    assert "2x5" in net.blobs["fc"]._repr_html_()
    assert repr(net.params["fc"].bias) == 'Parameter "fc.bias" (5)'
    conv = net.layers[1]
    assert repr(conv) == 'Layer "conv" (Convolution): data -> conv'
    assert "4x3x3x3" in conv._repr_html_()
    assert [*net.blobs] == ["data", "conv", "norm", "pool", "fc", "prob"]
    assert (net.inputs, net.outputs) == (["data"], ["prob"])


def test_it_is_drawn(net: oc.Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pydot")
    drawn = []

    def render(graph: Any, ext: str) -> bytes:  # Graphviz may not be there
        drawn.append(graph.to_string())
        return b"<svg/>"

    monkeypatch.setattr(draw, "render", render)
    net.draw().save(tmp_path / "net.svg")
    assert (tmp_path / "net.svg").read_text() == net.draw("TB")._repr_svg_() == "<svg/>"
    assert "(Convolution)" in drawn[0]
    assert "rankdir=TB" in drawn[1]


def test_what_is_wrong_is_a_user_error(net: oc.Net, tmp_path: Path) -> None:
    for call, words in (
        (lambda: oc.Net(tmp_path / "none.prototxt"), "none.prototxt"),
        (lambda: oc.Net("layer { nam: 1 }"), "the net's text"),
        (lambda: oc.Net(3), "not a net"),
        (lambda: oc.Net(TEXT, precision="bf16"), "gpu=0"),
        (lambda: oc.Net(TEXT, phase="test"), '"TEST" or "TRAIN"'),
        (lambda: oc.Net(TEXT, tmp_path / "none.caffemodel"), "none.caffemodel"),
        (lambda: net(image=X), '"image" is not an input of the net; it has data'),
        (lambda: net(data=X[0]), r"the shape \(3, 8, 8\): the first is the batch"),
        (lambda: net(data=X[:, :2]), r'"data" of \(3, 2, 8, 8\): .*needs .4, 2, 3, 3. instead of'),
        (lambda: net(data=X.transpose(0, 2, 3, 1)), r"axis 1 \(np.moveaxis\(x, -1, 1\)\)"),
        (lambda: net(X), "by the names of the inputs: data"),
        (lambda: net.blobs.__setitem__("data", X), 'blob "data": set its numbers'),
        (lambda: oc.Net(TEXT, threads=0), "threads=0: give at least 1"),
        (lambda: oc.Net(TEXT, gpu="all"), "gpu=all: give the number of one GPU"),  # type: ignore[arg-type]
        (lambda: oc.export("x", "x.onnx"), "str: no Net and no Model"),  # type: ignore[arg-type]
        (lambda: net(data=[[1], [1, 2]]), "data: "),
        (lambda: net(data=np.array(["a"])), "not a type of numbers"),
        (lambda: net.blobs["fc7"], 'no blob "fc7": it has data, conv'),
        (lambda: net.params["pool"], 'no layer with parameters "pool"'),
        (lambda: net.blobs["fc"].__setitem__(0, 1), "only inputs"),
        (lambda: net.blobs["data"].__setitem__(slice(None), np.zeros(3)), "data"),
    ):
        with pytest.raises(oc.UserError, match=words):
            call()
    with pytest.raises(KeyError):
        net.blobs["fc7"]
    assert net(data=X)["prob"].shape == (3, 5)  # it is as it was


def test_nets_run_beside_each_other(net: oc.Net) -> None:
    nets = [net, copy.deepcopy(net)]
    expected = net(data=X)["prob"]
    with ThreadPoolExecutor(2) as threads:
        for found in threads.map(lambda at: nets[at % 2](data=X)["prob"], range(40)):
            np.testing.assert_array_equal(found, expected)


def test_threads_take_turns(net: oc.Net) -> None:
    inputs = [X[: 1 + at % 3] + at for at in range(8)]
    expected = [net(data=x)["prob"] for x in inputs]
    wrong: list[int] = []

    def call(at: int) -> None:
        for _ in range(20):
            if not np.array_equal(net(data=inputs[at])["prob"], expected[at]):
                wrong.append(at)
            net.blobs["norm"].numpy()

    threads = [threading.Thread(target=call, args=(at,)) for at in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_overhead_of_a_call(root: Path) -> None:
    """All but the inner pass is few calls: 10 us of them, measured on a quiet machine."""
    net = oc.Net(read_net(root / "models/lenet/deploy.prototxt"), threads=1)
    x = np.zeros((1, 1, 28, 28), np.float32)
    net(data=x)
    net.engine.forward = lambda *_: None  # type: ignore[method-assign]
    events: list[str] = []
    sys.setprofile(lambda frame, event, argument: events.append(event))
    net(data=x)
    sys.setprofile(None)
    assert events.count("call") <= 17
    assert events.count("c_call") <= 8


@pytest.mark.gpu
def test_arrays_stay_on_a_gpu() -> None:
    import cupy

    net, host = oc.Net(TEXT, gpu=0, precision="fp32"), oc.Net(TEXT, threads=1)
    host.load(net)
    expected = host(data=X)["prob"]
    np.testing.assert_allclose(net(data=X)["prob"], expected, atol=1e-5)
    for _ in range(3):  # as it is at first, then captured
        prob = net(data=cupy.asarray(X))["prob"]
        assert isinstance(prob, cupy.ndarray)
        np.testing.assert_allclose(prob.get(), expected, atol=1e-5)
    np.testing.assert_allclose(cupy.asarray(net.blobs["prob"]).get(), expected, atol=1e-5)
    np.testing.assert_allclose(cupy.from_dlpack(net.blobs["fc"]).shape, (3, 5))
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.append(net(data=X)["prob"]))
    thread.start()
    thread.join()
    np.testing.assert_allclose(found[0], expected, atol=1e-5)
    with pytest.raises(oc.UserError, match="it lies on a GPU"):
        host(data=cupy.asarray(X))
