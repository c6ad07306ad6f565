"""Net as scripts use it: blobs, partial runs, gradients, files, shapes."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

import osucaffe.pycaffe as caffe
from osucaffe.errors import UserError

from .nets import DEPLOY, SIMPLE, label, write


@pytest.fixture
def net(tmp_path):
    net = caffe.Net(write(tmp_path, SIMPLE), caffe.TRAIN)
    label(net)
    return net


@pytest.fixture
def deploy(tmp_path):
    return caffe.Net(write(tmp_path, DEPLOY), caffe.TEST)


def images(count, size=6):
    return np.random.default_rng(2).standard_normal((count, 3, size, size)).astype(np.float32)


def test_arrays_outlive_the_net(net):
    parameters = [blob for blobs in net.params.values() for blob in blobs]
    blobs = list(net.blobs.values())
    arrays = [blob.data for blob in blobs]
    del net
    total = sum(float(blob.data.sum() + blob.diff.sum()) for blob in parameters + blobs)
    assert np.isfinite(total)
    assert all(np.isfinite(array).all() for array in arrays)


def test_layers_by_name_and_by_place(net):
    assert list(net.layer_dict) == list(net._layer_names)
    for index, name in enumerate(net._layer_names):
        assert net.layer_dict[name].type == net.layers[index].type
    assert net.layer_dict["conv"].blobs[0].data is not None
    assert net.layer_dict["ip"].blobs is net.params["ip"]


def test_what_is_seen_of_it(net):
    assert repr(net).splitlines()[0].startswith(f'Net "{net.name}", TRAIN: ')
    assert "<table>" in net._repr_html_()
    for name, blob in net.blobs.items():
        assert repr(blob) == f'Blob "{name}" ({"x".join(map(str, blob.shape)) or "scalar"})'
    shapes = ["x".join(map(str, blob.shape)) for blob in net.layer_dict["ip"].blobs]
    assert repr(net.layer_dict["ip"]) == f"Layer InnerProduct({', '.join(shapes)})"


def test_names_of_blobs(net):
    assert net.inputs == []
    assert net.outputs == ["loss"]
    assert list(net.blobs) == ["data", "label", "conv", "ip_blob", "loss"]
    assert list(net.params) == ["conv", "ip"]
    assert net.top_names == OrderedDict(
        data=["data", "label"], conv=["conv"], ip=["ip_blob"], loss=["loss"]
    )
    assert net.bottom_names == OrderedDict(
        data=[], conv=["data"], ip=["conv"], loss=["ip_blob", "label"]
    )
    assert net.blob_loss_weights["loss"] == 1
    assert net.blob_loss_weights["conv"] == 0


def test_labels_that_a_script_writes_stay(net):
    wanted = net.blobs["label"].data.copy()
    first = net.forward()["loss"]
    assert net.forward(blobs=["label"])["label"].tolist() == wanted.tolist()
    assert first.shape == ()
    assert net._forward(0, 3) == pytest.approx(float(net.blobs["loss"].data))


def test_forward_of_one_layer(net):
    conv, ip = net.blobs["conv"], net.blobs["ip_blob"]
    conv.data[:] = np.random.default_rng(1).standard_normal(conv.data.shape)
    result = net.forward(start="ip", end="ip")
    assert list(result) == ["ip_blob"]
    weights, bias = (blob.data for blob in net.params["ip"])
    expected = conv.data.reshape(5, -1) @ weights.T + bias
    np.testing.assert_allclose(ip.data, expected, rtol=1e-3, atol=1e-3)


def test_backward_of_one_layer(net):
    conv, ip = net.blobs["conv"], net.blobs["ip_blob"]
    ip.diff[:] = np.random.default_rng(1).standard_normal(ip.diff.shape)
    result = net.backward(start="ip", end="ip")
    assert list(result) == ["conv"]
    expected = (ip.diff @ net.params["ip"][0].data).reshape(conv.diff.shape)
    np.testing.assert_allclose(result["conv"], expected, rtol=1e-3, atol=1e-4)


def test_gradients_add_up_until_they_are_cleared(net):
    net.forward()
    net.backward()
    diff = net.params["conv"][0].diff
    once = diff.copy()
    assert np.abs(once).max() > 0
    net.backward()
    np.testing.assert_allclose(diff, 2 * once, rtol=1e-5)
    net.clear_param_diffs()
    assert not diff.any()


def test_diffs_of_outputs_are_the_scripts(deploy):
    deploy.forward(data=images(4))
    diffs = deploy.backward(prob=images(4, 1)[:, [0, 1, 2, 0, 1]])
    assert list(diffs) == ["data"]
    assert np.abs(diffs["data"]).max() > 0
    before = diffs["data"].copy()
    deploy.blobs["prob"].diff[...] *= 2
    np.testing.assert_allclose(deploy.backward()["data"], 2 * before, rtol=1e-4)
    assert set(deploy.backward(diffs=["conv"])) == {"data", "conv"}


@pytest.mark.parametrize("hdf5", [False, True])
def test_weights_that_are_saved_are_read_again(net, tmp_path, hdf5):
    file = tmp_path / "weights"  # without a suffix: what it holds tells its form
    (net.save_hdf5 if hdf5 else net.save)(str(file))
    path = write(tmp_path, SIMPLE)
    others = [caffe.Net(path, caffe.TRAIN), caffe.Net(path, caffe.TRAIN)]
    others[0].load_hdf5(str(file)) if hdf5 else others[0].copy_from(str(file))
    others[1] = caffe.Net(path, str(file), caffe.TRAIN)
    others.append(caffe.Net(path, caffe.TRAIN, weights=str(file), engine="MKLDNN"))
    for other in others:
        for name, blobs in net.params.items():
            for blob, again in zip(blobs, other.params[name], strict=True):
                assert np.array_equal(blob.data, again.data)


def test_the_seed_decides_and_the_order(tmp_path):
    path = write(tmp_path, SIMPLE)

    def weights():
        caffe.set_random_seed(7)
        return [caffe.Net(path, caffe.TRAIN).params["ip"][0].data.copy() for _ in range(2)]

    (first, second), (again, _) = weights(), weights()
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_missing_files_raise_runtime_error(tmp_path):
    with pytest.raises(RuntimeError, match=r"nothing\.prototxt"):
        caffe.Net(str(tmp_path / "nothing.prototxt"), caffe.TEST)
    with pytest.raises(RuntimeError, match=r"none\.caffemodel"):
        caffe.Net(write(tmp_path, SIMPLE), str(tmp_path / "none.caffemodel"), caffe.TEST)


def test_damaged_weights_are_named_before_the_net_is_built(net, tmp_path, monkeypatch):
    file = tmp_path / "net.caffemodel"
    net.save(file)
    file.write_bytes(file.read_bytes()[:-10])
    monkeypatch.delattr("osucaffe.net.Net")
    with pytest.raises(UserError, match=r"net\.caffemodel: .* cut short"):
        caffe.Net(write(tmp_path, SIMPLE), str(file), caffe.TEST)


def test_wrong_phases_and_layers_are_named(deploy, tmp_path):
    with pytest.raises(UserError, match="phase 7 is neither"):
        caffe.Net(write(tmp_path, DEPLOY), 7)
    with pytest.raises(ValueError, match='net "deploy" has no layer "cnov"; it has input, conv'):
        deploy.forward(end="cnov")


def test_wrong_names_of_inputs_are_refused(deploy):
    with pytest.raises(UserError, match="do not match net inputs"):
        deploy.forward(image=images(4))
    with pytest.raises(UserError, match="data: is not batch sized: 3 for 4"):
        deploy.forward(data=images(3))


def test_forward_all_takes_any_number_of_items(deploy):
    whole = deploy.forward_all(blobs=["conv"], data=images(10))
    assert whole["prob"].shape == (10, 5, 1, 1)
    assert whole["conv"].shape[0] == 10
    part = deploy.forward(data=images(10)[4:8])["prob"]
    np.testing.assert_allclose(whole["prob"][4:8], part, rtol=1e-5)
    outputs, diffs = deploy.forward_backward_all(data=images(6), prob=np.ones((6, 5, 1, 1)))
    assert outputs["prob"].shape[0] == diffs["data"].shape[0] == 6


def test_an_input_takes_another_shape(deploy):
    expected = deploy.forward(data=images(4))["prob"].copy()
    weights = deploy.params["conv"][0].data
    blob = deploy.blobs["data"]
    blob.reshape(2, 3, 6, 6)
    held = blob.data
    held[...] = images(4)[2:]
    np.testing.assert_allclose(deploy.forward()["prob"], expected[2:], rtol=1e-5)
    assert deploy.blobs["conv"].shape == (2, 5, 4, 4)
    held[...] = images(4)[:2]  # the array is still the blob's own
    np.testing.assert_allclose(deploy.forward()["prob"], expected[:2], rtol=1e-5)
    assert deploy.params["conv"][0].data is not None
    assert np.shares_memory(weights, deploy.params["conv"][0].data)
    blob.reshape(1, 3, 9, 8)
    deploy.reshape()
    assert deploy.blobs["conv"].data.shape == (1, 5, 7, 6)
    assert deploy.blobs["prob"].data.shape == (1, 5, 1, 1)
    deploy.forward()
    deploy.backward()


def test_blobs_of_unchanged_shape_keep_their_arrays(net):
    labels = net.blobs["label"].data
    wanted = labels.copy()
    net.blobs["data"].reshape(5, 2, 3, 4)  # as it is
    net.blobs["data"].reshape(5, 2, 4, 4)
    with pytest.raises(UserError, match='layer "ip"'):
        net.reshape()  # an inner product cannot have more inputs
    net.blobs["data"].reshape(5, 2, 3, 4)
    net.forward()
    assert np.shares_memory(labels, net.blobs["label"].data)
    assert np.array_equal(labels, wanted)


def test_old_names_of_extents(deploy):
    blob = deploy.blobs["data"]
    assert (blob.num, blob.channels, blob.height, blob.width) == (4, 3, 6, 6)
    assert blob.count == 4 * 3 * 36
    assert list(blob.shape) == [4, 3, 6, 6]


def test_nets_share_parameters(tmp_path):
    path = write(tmp_path, DEPLOY)
    first, second = caffe.Net(path, caffe.TEST), caffe.Net(path, caffe.TEST)
    second.share_with(first)
    first.params["conv"][0].data[...] *= 2
    assert np.shares_memory(first.params["conv"][0].data, second.params["conv"][0].data)
    results = [net.forward(data=images(4))["prob"] for net in (first, second)]
    np.testing.assert_array_equal(*results)


def test_functions_around_layers(deploy):
    seen = []
    deploy.before_forward(lambda index: seen.append(("before", index)))
    deploy.after_forward(lambda index: seen.append(("after", index)))
    deploy.before_backward(lambda index: seen.append(("down", index)))
    deploy.after_backward(lambda index: seen.append(("up", index)))
    deploy.forward(start="conv", end="relu")
    assert seen == [("before", 1), ("after", 1), ("before", 2), ("after", 2)]
    seen.clear()
    deploy.forward()
    last = len(deploy.layers) - 1
    assert seen == [(when, index) for index in range(last + 1) for when in ("before", "after")]
    seen.clear()
    deploy.backward(end="prob")
    assert seen == [("down", last), ("up", last)]


def choice(rules):
    def layer(name, rule):
        return (
            f'layer {{ name: "{name}" type: "InnerProduct" bottom: "data" top: "{name}" '
            f"inner_product_param {{ num_output: 1 }} {rule} }}"
        )

    data = (
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 9 } } }'
    )
    return data + "".join(layer(name, rule) for name, rule in rules.items())


RULES = {
    "Any": "",
    "Level0": "include { max_level: 0 }",
    "Level1": "include { min_level: 1 }",
    "NotA": 'include { not_stage: "A" }',
    "A": 'include { stage: "A" }',
    "B": 'include { stage: "B" }',
    "AandB": 'include { stage: "A" stage: "B" }',
}


@pytest.mark.parametrize(
    ("level", "stages", "names"),
    [
        (0, None, ["Any", "Level0", "NotA"]),
        (1, None, ["Any", "Level1", "NotA"]),
        (0, ["A"], ["Any", "Level0", "A"]),
        (0, ["B"], ["Any", "Level0", "NotA", "B"]),
        (1, ["A", "B"], ["Any", "Level1", "A", "B", "AandB"]),
    ],
)
def test_levels_and_stages(tmp_path, level, stages, names):
    path = write(tmp_path, choice(RULES))
    for net in (
        caffe.Net(path, caffe.TEST, level=level, stages=stages),
        caffe.Net(path, caffe.TEST, level, stages),
    ):
        assert [name for name in net.blobs if "data" not in name] == names


def test_arrays_for_memory_data(tmp_path):
    text = """
    layer { name: "memory" type: "MemoryData" top: "data" top: "label"
      memory_data_param { batch_size: 2 channels: 3 height: 6 width: 6 } }
    layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
      inner_product_param { num_output: 1 weight_filler { type: "constant" value: 1 } } }
    """
    net = caffe.Net(write(tmp_path, text), caffe.TEST)
    data = images(4)
    net.set_input_arrays(data, np.arange(4, dtype=np.float32))
    for batch in (data[:2], data[2:], data[:2]):
        result = net.forward()
        np.testing.assert_allclose(result["ip"][:, 0], batch.sum(axis=(1, 2, 3)), rtol=1e-4)
    assert net.blobs["label"].data.tolist() == [0, 1]
    net.blobs["data"].reshape(1, 3, 6, 6)  # the layer's own shape is what counts
    net.forward()
    assert net.blobs["data"].shape == (2, 3, 6, 6)
    with pytest.raises(UserError, match="multiple of batch_size"):
        net.set_input_arrays(data[:3], np.zeros(3, np.float32))
    with pytest.raises(UserError, match="no MemoryData"):
        caffe.Net(write(tmp_path, DEPLOY), caffe.TEST).set_input_arrays(data, np.zeros(4))


def test_labels_that_a_script_writes_are_checked(tmp_path):
    text = """layer { name: "x" type: "Input" top: "x" top: "label"
        input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" }"""
    net = caffe.Net(write(tmp_path, text), caffe.TEST)
    net.blobs["label"].data[...] = [0, 2]
    net.forward()
    net.blobs["label"].data[1] = 3
    with pytest.raises(UserError, match=r'blob "label"\[1\] has label 3, but layer "loss"'):
        net.forward()


HEAD = """layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: %d
    dim: %d } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param {
    num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { kernel_size: 2 } }
"""
TAIL = """layer { name: "fc" type: "InnerProduct" bottom: "conv" top: "fc" inner_product_param {
    num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "fc" top: "loss" loss_weight: 1 }
"""


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("phase", [caffe.TRAIN, caffe.TEST])
def test_what_runs_follows_other_shapes_alone(tmp_path, phase, forced):
    """As google/deepdream has it: C++ Caffe reshapes each layer as it runs."""
    force = "force_backward: true " if forced else ""
    net = caffe.Net(write(tmp_path, force + HEAD % (16, 16) + TAIL), phase)
    random = np.random.default_rng(0)
    first = random.standard_normal((1, 3, 16, 16))
    net.blobs["data"].data[...] = first
    expected = net.forward(blobs=["pool", "fc"])
    expected = {name: array.copy() for name, array in expected.items()}
    for high, wide in ((40, 30), (20, 50), (20, 50)):
        data = random.standard_normal((1, 3, high, wide)).astype(np.float32)
        other = caffe.Net(write(tmp_path, "force_backward: true " + HEAD % (high, wide)), phase)
        other.share_with(net)
        for each in (net, other):
            each.blobs["data"].reshape(1, 3, high, wide)
            each.blobs["data"].data[...] = data
            each.forward(end="conv")
            each.blobs["conv"].diff[...] = each.blobs["conv"].data
            each.clear_param_diffs()
            each.backward(start="conv")
        np.testing.assert_array_equal(net.blobs["conv"].data, other.blobs["conv"].data)
        sides = [
            each.params["conv"][0] if not forced else each.blobs["data"] for each in (net, other)
        ]
        np.testing.assert_array_equal(sides[0].diff, sides[1].diff)
        assert sides[0].diff.any()
        np.testing.assert_array_equal(net.forward(end="pool")["pool"], other.forward()["pool"])
        np.testing.assert_array_equal(net.blobs["fc"].data, expected["fc"])  # where it was
        for run in (net.forward, net.reshape, net.backward, lambda: net.forward(end="fc")):
            with pytest.raises(UserError, match=r'layer "fc" .* needs \(10, \d+\)'):
                run()
    net.blobs["data"].reshape(1, 3, 16, 16)
    for name, array in net.forward(blobs=["pool", "fc"], data=first).items():
        np.testing.assert_array_equal(array, expected[name])
    net.backward()
