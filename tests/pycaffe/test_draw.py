"""Net pictures: what the boxes say, which layers are there, every format, what is missing."""

from __future__ import annotations

import shutil
import sys

import pytest

from osucaffe.errors import UserError
from osucaffe.proto import NetParameter, parse_text, read_net
from osucaffe.pycaffe import draw

pytest.importorskip("pydot")

NET = """
name: "pic\\"ture"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { batch_size: 7 }
  include { phase: TRAIN } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" param { lr_mult: 1 }
  param { lr_mult: 2 }
  convolution_param { num_output: 20 kernel_size: 3 kernel_size: 5 stride: 2 dilation: 2 } }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: AVE kernel_h: 2 kernel_w: 3 } }
layer { name: "relu" type: "ReLU" bottom: "pool" top: "pool" }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 10 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture
def net():
    return parse_text(NET, NetParameter)


def test_labels(net):
    conv, pool, relu = net.layer[1:4]
    assert draw.get_layer_label(conv, "LR").split("\n") == [
        "conv", "(Convolution)", "kernel size: 3x5", "stride: 2", "pad: 0", "dilation: 2"
    ]  # fmt: skip
    assert draw.get_layer_label(conv, "TB", display_lrm=True).endswith("lr_mult: 1, 2")
    assert "(AVE Pooling) kernel size: 2x3" in draw.get_layer_label(pool, "TB")
    assert draw.get_layer_label(relu, "BT") == "relu (ReLU)"
    assert [draw.get_edge_label(layer) for layer in net.layer] == [
        "Batch 7", "20", "", "", "10", ""
    ]  # fmt: skip


def test_colours_tell_families_apart():
    types = ["Data", "Convolution", "InnerProduct", "Pooling", "BatchNorm", "HingeLoss", "ReLU"]
    assert len({draw.choose_color_by_layertype(name) for name in types}) == len(types)
    same = {draw.choose_color_by_layertype(name) for name in ("Convolution", "Deconvolution")}
    assert len(same) == 1


def test_graph(net):
    graph = draw.get_pydot_graph(net, "TB")
    assert graph.get_rankdir() == "TB"
    layers = [node for node in graph.get_nodes() if node.get_name().startswith("layer")]
    blobs = [node for node in graph.get_nodes() if node.get_name().startswith('"blob')]
    assert (len(layers), len(blobs)) == (6, 6)
    ends = [(edge.get_source(), edge.get_destination()) for edge in graph.get_edges()]
    assert ('"blob pool"', "layer3") in ends  # in place: one arrow with two heads
    assert ("layer3", '"blob pool"') not in ends
    tested = draw.get_pydot_graph(net, "LR", phase=1)
    assert "Batch" not in tested.to_string()
    assert "(Data)" in graph.to_string()


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_formats(net, tmp_path):
    assert draw.draw_net(net, "LR").startswith(b"\x89PNG")
    path = tmp_path / "net.svg"
    draw.draw_net_to_file(net, str(path), "TB", phase=0)
    assert "(SoftmaxWithLoss)" in path.read_text()
    with pytest.raises(UserError, match='no picture of format "xyz"'):
        draw.draw_net_to_file(net, str(tmp_path / "net.xyz"))
    with pytest.raises(UserError, match="cannot write it"):
        draw.draw_net_to_file(net, str(tmp_path / "none" / "net.png"))


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_a_real_net(root):
    for kind in ("deploy", "train_val"):
        net = read_net(root / "models" / "lenet" / f"{kind}.prototxt")
        assert draw.draw_net(net, "LR").startswith(b"\x89PNG")


def test_nets_of_old_form():
    old = """input: "x" input_dim: 1 input_dim: 1 input_dim: 2 input_dim: 2
        layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "y"
            inner_product_param { num_output: 2 } }"""
    graph = draw.get_pydot_graph(parse_text(old, NetParameter), "LR")
    assert "InnerProduct" in graph.to_string()


def test_what_is_missing_is_named(net, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="suffix"):
        draw.draw_net_to_file(net, str(tmp_path / "net"))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="need Graphviz"):
        draw.draw_net(net, "LR")
    draw.draw_net_to_file(net, str(tmp_path / "net.dot"))
    assert (tmp_path / "net.dot").read_text().startswith("digraph")
    monkeypatch.setitem(sys.modules, "pydot", None)
    with pytest.raises(UserError, match=r"osucaffe\[tools\]"):
        draw.draw_net(net, "LR")
