"""Layers that a script writes: values, gradients, parameters, shapes that change, errors."""

from __future__ import annotations

import os
import re
import sys

import numpy as np
import pytest

import osucaffe.pycaffe as caffe
from osucaffe.backends.cpu import Cpu
from osucaffe.errors import UserError
from osucaffe.net import Net
from osucaffe.proto import NetParameter, parse_text
from osucaffe.pycaffe import layers as L
from osucaffe.solvers import Solver
from tests.forked import run
from tests.solvers.runs import Unclean

from .nets import write

MODULE = "tests.pycaffe.layers_for_tests"
INPUT = 'force_backward: true input: "data" input_shape { dim: 10 dim: 9 dim: 8 }\n'


def layer(kind, bottom="data", top="top", name=None, param_str=None, more=""):
    bottoms = "".join(f'bottom: "{blob}" ' for blob in bottom.split())
    tops = "".join(f'top: "{blob}" ' for blob in top.split())
    text = "" if param_str is None else f'param_str: "{param_str}"'
    return (
        f'layer {{ name: "{name or top.split()[0]}" type: "Python" {bottoms} {tops} {more} '
        f'python_param {{ module: "{MODULE}" layer: "{kind}" {text} }} }}\n'
    )


@pytest.fixture
def load(tmp_path):
    return lambda text, phase=caffe.TRAIN: caffe.Net(write(tmp_path, text), phase)


@pytest.fixture
def three(load):
    text = layer("TimesTen", "data", "one") + layer("TimesTen", "one", "two")
    return load(INPUT + text + layer("TimesTen", "two", "three"))


def test_forward(three):
    three.blobs["data"].data[...] = 8
    three.forward()
    assert (three.blobs["three"].data == 8000).all()


def test_backward(three):
    three.blobs["three"].diff[...] = 7
    three.backward()
    assert (three.blobs["data"].diff == 7000).all()


def test_shapes_follow(three):
    three.blobs["data"].reshape(4, 4, 4, 4)
    three.blobs["data"].data[...] = 2
    three.forward()
    assert {blob.data.shape for blob in three.blobs.values()} == {(4, 4, 4, 4)}
    assert (three.blobs["three"].data == 2000).all()
    assert three.layers[1].set_up == 1  # and the objects stay


def test_param_str(load):
    net = load(INPUT + layer("Times", "data", "x", param_str="10") +
               layer("Times", "x", "y", param_str="2"))  # fmt: skip
    net.blobs["data"].data[...] = 8
    assert (net.forward()["y"] == 160).all()
    net.blobs["y"].diff[...] = 7
    net.backward()
    assert (net.blobs["data"].diff == 140).all()
    with pytest.raises(ValueError, match="must be a number"):
        load(INPUT + layer("Times", param_str="ten"))


def test_names_of_other_versions(load):
    """caffe-fast-rcnn's param_str_, and its phases as text."""
    for phase, read in ((caffe.TRAIN, ("3", "TRAIN", False)), (caffe.TEST, ("3", "TEST", True))):
        assert load(INPUT + layer("Scripted", param_str="3"), phase).layers[1].read == read


def test_tops_without_elements(load):
    """Python layers, Silence and the splits between take them, and no other layer."""
    text = INPUT + layer("Empty", top="none found")
    text += layer("TimesTen", "none", "again") + layer("TimesTen", "found", "ten")
    silence = 'layer { name: "s" type: "Silence" bottom: "none" bottom: "again" }'
    net = load(text + silence)
    for count in (0, 2, 0):
        net.blobs["data"].data[...] = count
        assert net.forward()["ten"].shape == (count,)
        assert net.blobs["again"].data.shape == (0, 4)
        assert net.backward()["data"].all()
    inner = (
        'layer { name: "ip" type: "InnerProduct" bottom: "none" inner_product_param {} top: "i" }'
    )
    with pytest.raises(UserError, match=r'"none" has shape \(0, 4\): only Python and Silence'):
        load(INPUT + layer("Empty", top="none found") + inner)


def test_what_a_class_leaves_alone_is_zero():
    """It shares its memory with other blobs, unlike in Caffe, where it was zero from the start."""
    text = """
    layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param {
      num_output: 3 weight_filler { type: "gaussian" } } }
    """ + layer("NoGradient", "ip", "y", more="loss_weight: 1")
    text += 'layer { name: "loss" type: "EuclideanLoss" bottom: "ip" bottom: "x" top: "loss" }'
    found = []
    for each in (text, text.replace("loss_weight: 1", "")):
        net = Net(parse_text(each, NetParameter), backend=Unclean(), seed=3)
        net.write("x", np.ones((2, 3)))
        net.forward()
        net.backward()
        found.append([net.backend.read(parameter.blob.diff) for parameter in net.parameters])
    np.testing.assert_equal(*found)


def test_exceptions_go_through(load):
    with pytest.raises(RuntimeError, match="no"):
        load(INPUT + layer("Raises"))
    net = load(INPUT + layer("RaisesOnce"))
    with pytest.raises(KeyError, match="once"):
        net.forward()
    net.blobs["data"].data[...] = 1
    assert (net.forward()["top"] == 10).all()


def test_parameters(load, tmp_path):
    text = INPUT + layer("Parameter", name="layer")
    net = load(text)
    net.forward()
    net.backward()
    python = net.layers[list(net._layer_names).index("layer")]
    assert python.blobs[0].data[0] == 0
    assert python.blobs[0].diff[0] == 1
    python.blobs[0].data[0] += python.blobs[0].diff[0]
    assert net.params["layer"][0].data[0] == 1
    net.save(str(tmp_path / "model"))
    python.blobs[0].data[0] = -1
    net.copy_from(str(tmp_path / "model"))
    assert python.blobs[0].data[0] == 1
    other = load(text)
    other.share_with(net)
    net.params["layer"][0].data[0] = 5
    assert other.params["layer"][0].data[0] == 5
    assert other.layer_dict["layer"].blobs[0].data[0] == 5


def test_gradients_of_parameters_add_up(load):
    net = load('force_backward: true input: "data" input_shape { dim: 4 dim: 9 }' + layer("Bias"))
    net.forward()
    assert (net.blobs["top"].data == 3).all()
    net.blobs["top"].diff[...] = 1
    net.backward()
    assert (net.params["top"][0].diff == 4).all()
    net.blobs["data"].reshape(2, 9)
    net.forward()
    net.blobs["top"].diff[...] = 1
    net.backward()
    assert (net.params["top"][0].diff == 6).all()
    assert (net.blobs["data"].diff == 1).all()


def test_phase(load):
    for phase in (caffe.TRAIN, caffe.TEST):
        assert load(layer("Phase", bottom="", top="phase"), phase).forward()["phase"] == phase


def test_data_of_changing_size(load):
    net = load(
        layer("Growing", "", "x y", name="grow")
        + 'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param '
        '{ num_output: 2 weight_filler { type: "constant" value: 1 } } }'
        + 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }'
    )
    weights = net.params["ip"][0].data
    for _ in range(3):
        net.forward()
        count = net.layers[0].count
        assert net.blobs["ip"].data.tolist() == [[3.0 * count] * 2] * count
        net.backward()
    assert count >= 3
    assert np.shares_memory(weights, net.params["ip"][0].data)


def test_a_size_that_only_forward_knows(load):
    net = load(
        'input: "data" input_shape { dim: 5 dim: 2 }'
        + layer("Positive", top="found")
        + layer("TimesTen", "found", "top")
    )
    data = net.blobs["data"].data
    data[...] = [[1, 2], [-1, 3], [4, 5], [-2, 0], [6, 7]]
    assert net.forward()["top"].tolist() == [[10, 20], [40, 50], [60, 70]]
    assert net.blobs["found"].shape == (3, 2)
    data[...] = [[-1, 2], [-1, 3], [4, 5], [-2, 0], [-6, 7]]
    assert net.forward()["top"].tolist() == [[40, 50]]


def test_a_net_that_trains_with_a_python_loss(tmp_path):
    net = (
        layer("Growing", "", "x y", name="grow")
        + 'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param '
        '{ num_output: 3 weight_filler { type: "gaussian" std: 0.1 } } }'
        + layer("Bias", "ip", "sum", name="bias")
        + layer("Loss", "sum x", "loss", more="loss_weight: 1")
    )
    path = write(tmp_path, net)
    text = f'net: "{path}" base_lr: 0.002 lr_policy: "fixed" random_seed: 1'
    solver = caffe.SGDSolver(write(tmp_path, text, "solver.prototxt"))
    losses = []
    for _ in range(8):
        solver.step(1)
        losses.append(float(solver.net.blobs["loss"].data[0] / solver.net.layers[0].count ** 2))
    assert losses[-1] < losses[0] / 2
    assert solver.net.params["bias"][0].data.tolist() != [3, 3, 3]
    # The engine alone: the same weights, in nets whose memory is shared.
    alone = Solver(solver.param, Cpu())
    alone.step(8)
    for layer_ in ("ip", "bias"):
        index = alone.net.layer_names.index(layer_)
        ours = alone.backend.read(alone.net.layers[index].parameters[0].data)
        np.testing.assert_allclose(ours, solver.net.params[layer_][0].data, rtol=1e-5)


def test_layers_from_a_net_spec(load):
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 3]})
    n.ten = L.Python(n.data, module=MODULE, layer="TimesTen")
    n.half = L.Python(n.ten, python_param={"module": MODULE, "layer": "Times", "param_str": "0.5"})
    net = load(str(n.to_proto()))
    net.blobs["data"].data[...] = 1
    assert (net.forward()["half"] == 5).all()


def test_in_place(load):
    net = load(INPUT + layer("TimesTen", "data", "data", name="ten"))
    net.blobs["data"].data[...] = 1
    net.forward()
    assert (net.blobs["data"].data == 10).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (layer("NoLayer"), 'has no class "NoLayer" derived from caffe.Layer'),
        (layer("Nothing"), 'has no class "Nothing"'),
        (
            layer("TimesTen").replace(MODULE, "no_such_module"),
            r'module: there is no module "no_such_module": put its folder on PYTHONPATH',
        ),
        (
            layer("TimesTen").replace(MODULE, "rpn.debug_layer"),
            r'"rpn.debug_layer", as there is no package "rpn": put the folder that holds it on',
        ),
        (
            layer("TimesTen").replace(MODULE, "caffe.layers.pascal_multilabel"),
            r'"caffe.layers.pascal_multilabel": caffe.layers of yours is not looked into',
        ),
        (
            layer("TimesTen").replace(MODULE, "needs_another"),
            r'"needs_another" imports "no_such_library", which is not there: install it',
        ),
    ],
)
def test_bad_names(load, text, message, tmp_path, monkeypatch):
    write(tmp_path, "import no_such_library.part", "needs_another.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    with pytest.raises(UserError, match=message):
        load(INPUT + text)


def test_a_shape_that_changes_behind_other_layers_needs_memory_of_its_own():
    from osucaffe.proto import NetParameter, parse_text, upgrade_net

    text = (
        INPUT
        + 'layer { name: "pow" type: "Power" bottom: "data" top: "p" }'
        + layer("Positive", "p", "found", name="some")
    )
    net = Net(upgrade_net(parse_text(text.replace("dim: 8", ""), NetParameter)), backend=Cpu())
    with pytest.raises(UserError, match=r'layer "some".*its shape changed'):
        net.forward()


def test_the_command_line_trains_with_modules_that_import_caffe(tmp_path, root):
    write(
        tmp_path,
        "import caffe\n\nclass Half(caffe.Layer):\n"
        "    def reshape(self, bottom, top):\n        top[0].reshape(*bottom[0].shape)\n"
        "    def forward(self, bottom, top):\n        top[0].data[...] = bottom[0].data / 2\n"
        "    def backward(self, top, propagate_down, bottom):\n"
        "        bottom[0].diff[...] = top[0].diff / 2\n",
        "my_layers.py",
    )
    net = (
        'layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } '
        'data_filler { value: 1 } } }\nlayer { name: "ip" type: "InnerProduct" bottom: "x" top: '
        '"ip" inner_product_param { num_output: 3 } }\nlayer { name: "half" type: "Python" bottom: '
        '"ip" top: "half" python_param { module: "my_layers" layer: "Half" } }\n'
        'layer { name: "loss" type: "EuclideanLoss" bottom: "half" bottom: "x" top: "loss" }'
    )
    path = write(tmp_path, net)
    text = (
        f'net: "{path}" base_lr: 0.1 lr_policy: "fixed" max_iter: 9 display: 8 '
        "snapshot_after_train: false"
    )
    solver = str(write(tmp_path, text, "solver"))
    search = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code, _, told = run(["osucaffe", "train", "--solver", solver], str(root), search)
    assert code == 0, told
    losses = re.findall(r"Train net output #0: loss = (\S+)", told)
    assert float(losses[-1]) < 0.5 * float(losses[0])


@pytest.mark.parametrize("module", ["my_layers", "os"])
def test_the_command_line_can_refuse_modules(tmp_path, root, module):
    write(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')\nimport caffe\n", "my_layers.py")
    net = (
        'layer { name: "p" type: "Python" top: "y" python_param { module: "%s" layer: "L" } }'
    ).replace("%s", module)
    command = ["osucaffe", "time", "--no-python-layers", "--model", str(write(tmp_path, net))]
    search = {**os.environ, "PYTHONPATH": str(tmp_path)}
    code, _, told = run(command, str(root), search)
    assert code == 1
    assert told.endswith(
        f'layer "p" (Python), python_param.module: "{module}" may not be imported '
        "(--no_python_layers)\n"
    )
    assert not (tmp_path / "ran").exists()
