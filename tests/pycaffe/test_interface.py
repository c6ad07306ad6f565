"""The package as scripts find it: its names, `import caffe`, the log, the timer; layers of one
name, and weights that match no layer."""

from __future__ import annotations

import operator
import re
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
    caffe.set_multiprocess(False)
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    assert (caffe.solver_count(), caffe.solver_rank(), caffe.has_nccl()) == (1, 0, False)
    for call in (
        lambda: caffe.set_solver_count(2),
        lambda: caffe.set_solver_rank(1),
        lambda: caffe.set_devices([0, 1]),
    ):
        with pytest.raises(UserError, match="several train with osucaffe train --"):
            call()


NAMES = {
    "": """AdaDeltaSolver AdaGradSolver AdamSolver Classifier Detector Layer LayerParameter NCCL
        NesterovSolver Net NetSpec RMSPropSolver SGDSolver TEST TRAIN Timer __version__ _caffe
        classifier compile_net coord_map create_layer detector draw get_solver has_nccl init_log io
        layer_type_list layers log net_spec params proto pycaffe set_device set_devices set_mode_cpu
        set_mode_gpu set_multiprocess set_random_seed set_solver_count set_solver_rank solver_count
        solver_rank to_proto""",
    "_caffe": """AdaDeltaSolver AdaGradSolver AdamSolver Blob BlobVec BoolVec DtypeVec IntVec Layer
        LayerParameter LayerVec MultiSync NCCL NesterovSolver Net NetVec RMSPropSolver RawBlobVec
        SGDSolver Solver SolverParameter StringVec Timer _barrier _node_id _num_nodes bcast
        get_solver has_nccl init_log log new_uid set_device set_mode_cpu set_mode_gpu
        set_multiprocess set_random_seed set_solver_count set_solver_rank solver_count
        solver_rank""",
    "Net": """_backward _batch _bottom_ids _forward _set_input_arrays _top_ids after_backward
        after_forward backward backward_simple before_backward before_forward clear_param_diffs
        copy_from forward forward_all forward_backward_all forward_simple load_hdf5 reshape save
        save_hdf5 set_input_arrays share_with _blob_loss_weights _blob_names _blobs _inputs
        _output_list _outputs""",
    "_caffe.Blob": """channels count data data_ro diff diff_ro height num reshape shape width
        _gpu_data_ptr _gpu_diff_ptr""",
    "_caffe.Layer": "Backward Forward Reshape SetUp reshape setup type",
    "_caffe.Solver": """add_callback apply_update backward clear_param_diffs forward increment_iter
        iter lr param restore share_weights snapshot solve step update update_and_forward""",
    "_caffe.LayerParameter": "from_python to_python",
    "classifier.Classifier": "predict",
    "coord_map": """AxisMismatchException PASS_THROUGH_LAYERS UndefinedMapException compose
        conv_params coord_map coord_map_from_to crop crop_params inverse""",
    "detector.Detector": "configure_crop crop detect_selective_search detect_windows",
    "draw": """BLOB_STYLE LAYER_STYLE_DEFAULT NEURON_LAYER_STYLE choose_color_by_layertype draw_net
        draw_net_to_file get_edge_label get_layer_label get_layer_lr_mult get_pooling_types_dict
        get_pydot_graph""",
    "io": """array_to_blobproto array_to_datum arraylist_to_blobprotovecor_str
        arraylist_to_blobprotovector_str blobproto_to_array blobprotovector_str_to_arraylist
        datum_to_array flip_image load_image oversample resize resize_image""",
    "io.Transformer": """deprocess preprocess set_channel_swap set_input_scale set_is_flow set_mean
        set_raw_scale set_transpose""",
    "net_spec": """Function Layers NetSpec Parameters Top assign_proto layers param_name_dict params
        to_proto""",
    "net_spec.NetSpec": "keys to_proto update vals",
}
"""The public names of pycaffe in the Caffes of BVLC, SSD, py-faster-rcnn, SegNet, NVIDIA, Intel."""


def test_every_public_name_is_there_or_its_absence_is_explained(root):
    page = (root / "docs" / "pycaffe.md").read_text()
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    explained = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    for place, names in NAMES.items():
        owner = operator.attrgetter(place)(caffe) if place else caffe
        kind = place.rpartition(".")[2]
        missing = {name for name in names.split() if not hasattr(owner, name)}
        assert {name for name in missing if f"{kind}.{name}" not in explained} <= explained


def test_names_of_the_extension_module(tmp_path):
    net = caffe.Net(write(tmp_path, SIMPLE), caffe.TRAIN)
    assert type(net.params["ip"]) is caffe._caffe.BlobVec  # as MobileNet-SSD's merge_bn.py asks
    names = net._blob_names
    assert names == list(net.blobs)
    assert [blob.shape for blob in net._blobs] == [blob.shape for blob in net.blobs.values()]
    for number, layer in enumerate(net._layer_names):
        assert [names[each] for each in net._bottom_ids(number)] == net.bottom_names[layer]
        assert [names[each] for each in net._top_ids(number)] == net.top_names[layer]
    assert [names[each] for each in net._outputs] == net._output_list == net.outputs
    assert (net._inputs, net._input_list) == ([], [])
    assert dict(zip(names, net._blob_loss_weights, strict=True)) == dict(net.blob_loss_weights)
    net.layers[1].setup([net.blobs["data"]], [net.blobs["conv"]])
    net.layers[1].reshape([net.blobs["data"]], [net.blobs["conv"]])


PARTS = """
    import sys
    import osucaffe.pycaffe
    osucaffe.pycaffe.install()
    import caffe, caffe._caffe, caffe.pycaffe
    from caffe.pycaffe import Net
    assert Net is caffe.Net is caffe._caffe.Net
    sys.path.insert(0, "python")
    from caffe.model_libs import *
    assert Body(caffe.NetSpec()) == "data"
    import caffe.more.part
    assert caffe.more.part.caffe is caffe and caffe.io is osucaffe.pycaffe.io
    try:
        import caffe.absent
    except ModuleNotFoundError as error:
        assert error.name == "caffe.absent"
    else:
        raise AssertionError
"""


def test_a_package_of_the_users_completes_it(root, tmp_path):
    """As SSD's clone does with caffe.model_libs; what is there is not replaced."""
    own = tmp_path / "python" / "caffe"
    (own / "more").mkdir(parents=True)
    (own / "__init__.py").write_text("raise AssertionError")
    (own / "io.py").write_text("raise AssertionError")
    (own / "more" / "__init__.py").write_text("")
    (own / "more" / "part.py").write_text("import caffe")
    libs = "import caffe\nfrom caffe import layers as L\ndef Body(net):\n"
    libs += "    net.data = L.Input()\n    return net.keys()[0]\n"
    (own / "model_libs.py").write_text(libs)
    done = python("-c", textwrap.dedent(PARTS), PYTHONPATH=str(root), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


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
