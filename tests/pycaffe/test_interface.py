"""The package as scripts find it: its names, `import caffe`, the log, the timer; layers of one
name, and weights that match no layer."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

import osucaffe.pycaffe as caffe
from osucaffe.errors import UserError
from tests.processes import python

from .nets import SIMPLE, write

SCRIPT = """
    import osucaffe.pycaffe
    osucaffe.pycaffe.install()
    import caffe
    import caffe.io, caffe.draw
    from caffe import layers as L, params as P
    from caffe.proto import caffe_pb2
    from caffe.coord_map import crop
    import caffe.proto.caffe_pb2 as again
    assert caffe is osucaffe.pycaffe
    assert again is caffe_pb2 and caffe_pb2.TEST == caffe.TEST == 1 and caffe.TRAIN == 0
    assert caffe.io is osucaffe.pycaffe.io
    caffe.log("a line")
"""

SAME = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 4 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "y" top: "z" inner_product_param {
  num_output: 2 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "ip" type: "ReLU" bottom: "z" top: "a" }
layer { name: "loss" type: "Reduction" bottom: "a" top: "loss" loss_weight: 1 }
"""


def test_import_caffe_finds_this_package(root):
    done = python("-c", textwrap.dedent(SCRIPT), PYTHONPATH=str(root))
    assert done.returncode == 0, done.stderr
    assert "] a line" in done.stderr
    quiet = {"PYTHONPATH": str(root), "GLOG_minloglevel": "2"}
    assert "a line" not in python("-c", textwrap.dedent(SCRIPT), **quiet).stderr


@pytest.mark.parametrize("name", ["Data", "Convolution", "InnerProduct", "Python"])
def test_layer_types(name):
    assert name in caffe.layer_type_list()


def test_one_process_is_all():
    assert (caffe.solver_count(), caffe.solver_rank(), caffe.has_nccl()) == (1, 0, False)


def test_the_timer_runs():
    timer = caffe.Timer()
    timer.start()
    sum(range(1000))
    timer.stop()
    assert 0 < timer.ms < 1000


def test_layers_of_one_name(tmp_path):
    """By name a script sees the last one (with parameters), as in pycaffe; by place, each."""
    path = write(tmp_path, SAME)
    net = caffe.Net(path, caffe.TRAIN)
    assert list(net._layer_names) == ["x", "ip", "ip", "ip", "loss"]
    assert net.layer_dict["ip"].type == "ReLU"
    assert net.params["ip"][0].data.shape == (2, 4)
    assert net.layers[1].blobs[0].data.shape == (4, 3)
    net.blobs["x"].data[...] = 1
    net.forward()
    assert list(net.forward(start="ip", end="ip")) == ["y"]  # the first one that has the name
    net.backward()
    diffs = [blob.diff for layer in net.layers for blob in layer.blobs]
    assert len(diffs) == 4
    net.clear_param_diffs()
    assert not any(diff.any() for diff in diffs)
    other = caffe.Net(path, caffe.TRAIN)
    net.save(str(tmp_path / "net.caffemodel"))
    other.copy_from(str(tmp_path / "net.caffemodel"))
    for mine, its in zip(net.layers, other.layers, strict=True):
        for blob, copy in zip(mine.blobs, its.blobs, strict=True):
            assert np.array_equal(blob.data, copy.data)
    other.layers[1].blobs[0].data[...] = 2
    net.share_with(other)
    assert (net.layers[1].blobs[0].data == 2).all()
    with pytest.raises(UserError, match=r'"ip" .*HDF5 files keep weights by name'):
        net.save_hdf5(str(tmp_path / "net.h5"))


def test_weights_of_another_net_are_refused(tmp_path):
    caffe.Net(write(tmp_path, SIMPLE), caffe.TRAIN).save(str(tmp_path / "net.caffemodel"))
    with pytest.raises(UserError, match="nothing to load: it has conv, ip, but"):
        caffe.Net(
            write(tmp_path, SAME.replace('"ip"', '"fc"'), "fc.prototxt"), caffe.TEST
        ).copy_from(str(tmp_path / "net.caffemodel"))
