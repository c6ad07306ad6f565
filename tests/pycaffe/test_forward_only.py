"""The fast forward pass of TEST nets: what a script sees is what the net as it is computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import osucaffe.pycaffe as caffe
from osucaffe.errors import UserError
from osucaffe.pycaffe.forward_only import MOST_WANTED

from .nets import write

NET = """
input: "data" input_shape { dim: 4 dim: 3 dim: 6 dim: 7 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 5 kernel_size: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "scaled" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "scaled" top: "scaled" }
layer { name: "pool" type: "Pooling" bottom: "scaled" top: "pool"
  pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


@pytest.fixture
def nets(tmp_path: Path) -> tuple[caffe.Net, caffe.Net]:
    """A net, and one of the same parameters that never takes the fast way."""
    path = write(tmp_path, NET)
    net, plain = caffe.Net(path, caffe.TEST), caffe.Net(path, caffe.TEST)
    plain._forward_only = None
    for name, blobs in net.params.items():
        for i, blob in enumerate(blobs):
            if name == "bn":
                blob.data[...] = np.random.default_rng(i).uniform(0.5, 1.5, blob.data.shape)
            plain.params[name][i].data[...] = blob.data
    return net, plain


def feed(seed: int, *nets: caffe.Net) -> None:
    for net in nets:
        shape = net.blobs["data"].data.shape
        net.blobs["data"].data[...] = np.random.default_rng(seed).normal(size=shape)


def same(net: caffe.Net, plain: caffe.Net, names: list[str]) -> None:
    for name in names:
        found, wanted = net.blobs[name].data, plain.blobs[name].data
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_net_that_samples_computes_all_its_blobs_by_the_same_draws(tmp_path: Path) -> None:
    drop = (
        'layer { name: "drop" type: "Dropout" bottom: "pool" top: "drop" '
        "dropout_param { sample_weights_test: true } }"
    )
    text = NET.replace('layer { name: "ip"', drop + 'layer { name: "ip"')
    text = text.replace('bottom: "pool" top: "ip"', 'bottom: "drop" top: "ip"')
    net = caffe.Net(write(tmp_path, text), caffe.TEST)
    feed(1, net)
    samples = []
    for _ in range(2):
        net.forward()
        samples.append(net.blobs["ip"].data.copy())
        weights, bias = (blob.data for blob in net.params["ip"])
        wanted = net.blobs["drop"].data.reshape(4, -1) @ weights.T + bias
        np.testing.assert_allclose(samples[-1], wanted, rtol=1e-4, atol=1e-5)
    assert np.abs(samples[0] - samples[1]).max() > 0.01


def test_outputs_then_other_blobs(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    feed(1, net, plain)
    outputs = net.forward()
    np.testing.assert_allclose(outputs["prob"], plain.forward()["prob"], rtol=1e-5)
    assert net._forward_only.is_stale
    feed(2, net)  # blobs are those of the pass before
    same(net, plain, ["conv", "pool", "prob"])
    assert not net._forward_only.is_stale
    same(net, plain, list(net.blobs)[1:])
    feed(2, plain)
    same(net, plain, ["data"])
    net.forward(), plain.forward()
    same(net, plain, ["conv"])  # it has been looked at: now it is there
    assert net._forward_only.is_stale
    same(net, plain, list(net.blobs))


def test_named_blobs_come_with_the_outputs(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    feed(1, net, plain)
    found, wanted = (each.forward(blobs=["pool", "scaled"]) for each in nets)
    assert net._forward_only.is_stale
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5)


def test_parameters_may_change_at_any_time(
    nets: tuple[caffe.Net, caffe.Net], tmp_path: Path
) -> None:
    net, plain = nets
    held = [each.params["conv"][0].data for each in nets]
    for step in range(3):
        feed(step, net, plain)
        net.forward(), plain.forward()
        same(net, plain, ["prob"])
        for each, array in zip(nets, held, strict=True):
            array[0, 0] += 1
            each.params["scale"][1].data[...] -= 0.25
    plain.save(str(tmp_path / "w.caffemodel"))
    for each in nets:
        each.params["ip"][0].data[...] = 0
        each.forward()
        each.copy_from(str(tmp_path / "w.caffemodel"))
        each.forward()
    same(net, plain, ["prob", "ip"])


def test_arrays_that_a_script_holds_follow(nets: tuple[caffe.Net, caffe.Net]) -> None:
    held = [[each.blobs["scaled"].data, each.blobs["pool"].data[1:3, 0]] for each in nets]
    for step in range(3):
        feed(step, *nets)
        for each in nets:
            each.forward()
        assert nets[0]._forward_only.is_stale
        for mine, other in zip(*held, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_what_a_script_writes_to_a_blob_stays(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    feed(1, net, plain)
    for each in nets:
        each.forward(blobs=["pool"])
        each.blobs["pool"].data[0] = 1
        each.blobs["prob"].data[1] = 2
        assert each.blobs["conv"].data.shape == (4, 5, 4, 5)
        np.testing.assert_array_equal(each.blobs["prob"].data[1], 2)
        each.forward(start="ip")
    same(net, plain, list(net.blobs))


def test_parameters_are_compared_while_a_script_holds_them(
    nets: tuple[caffe.Net, caffe.Net],
) -> None:
    net, plain = nets
    for each in nets:
        each.params["conv"][0].data[0] = 1
    feed(1, net, plain)
    net.forward(), plain.forward()
    same(net, plain, ["prob"])
    assert not net._forward_only._looked_at
    held = net.params["conv"][0].data[1]
    for value in 1, 2:
        held[:] = value
        plain.params["conv"][0].data[1] = value
        net.forward(), plain.forward()
        same(net, plain, ["prob"])
        assert net._forward_only._looked_at


def test_other_shapes(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    for count in 4, 2, 4, 7, 2:
        for each in nets:
            each.blobs["data"].reshape(count, 3, 6, 7)
            each.reshape()
        feed(count, net, plain)
        net.forward(), plain.forward()
        same(net, plain, ["prob"])
    same(net, plain, list(net.blobs))


def test_parts_of_a_pass_and_backward(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    for each in nets:
        feed(1, each)
        each.forward()
        feed(2, each)
        each.forward(start="pool")  # from what conv made of the first
        each.blobs["prob"].diff[...] = np.arange(12).reshape(4, 3)
        each.backward()
    same(net, plain, list(net.blobs))
    for name in net.params:
        for mine, other in zip(net.params[name], plain.params[name], strict=True):
            np.testing.assert_allclose(mine.diff, other.diff, rtol=1e-4, atol=1e-4)
    feed(3, net, plain)
    net.forward(), plain.forward()
    for each in nets:
        each.blobs["prob"].diff[...] = 1 / 3
        each.blobs["prob"].diff[:, 0] = 2
        each.backward()
    np.testing.assert_allclose(
        net.params["ip"][0].diff, plain.params["ip"][0].diff, rtol=1e-4, atol=1e-4
    )


def test_a_script_that_calls_back_or_looks_at_everything_gets_the_net_as_it_is(
    nets: tuple[caffe.Net, caffe.Net],
) -> None:
    net, plain = nets
    seen: list[int] = []
    net.after_forward(seen.append)
    feed(1, net, plain)
    net.forward(), plain.forward()
    assert seen == list(range(len(net.layers)))
    same(net, plain, list(net.blobs))
    net._after_forward.clear()
    net._forward_only.want(f"made up {i}" for i in range(MOST_WANTED + 1))
    net.forward()
    assert not net._forward_only.is_stale
    same(net, plain, list(net.blobs))


def test_parameters_of_another_net(nets: tuple[caffe.Net, caffe.Net]) -> None:
    net, plain = nets
    net.forward()
    net.share_with(plain)
    for change in 0.5, 1.5:
        plain.params["conv"][1].data[...] += change
        feed(1, net, plain)
        net.forward(), plain.forward()
        same(net, plain, ["prob"])


def test_nets_that_bring_their_data_run_as_they_are(tmp_path: Path) -> None:
    text = NET.replace(
        'input: "data" input_shape { dim: 4 dim: 3 dim: 6 dim: 7 }',
        'layer { name: "d" type: "DummyData" top: "data" dummy_data_param { '
        'shape { dim: 4 dim: 3 dim: 6 dim: 7 } data_filler { type: "gaussian" } } }',
    )
    net = caffe.Net(write(tmp_path, text), caffe.TEST)
    assert net._forward_only is None
    net.forward()


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match="precision 'half': it must be one of fp32, tf32"):
        caffe.set_precision("half")
