"""Nets written in Python: names, fields, layers in place, mistakes."""

from __future__ import annotations

import pytest

import osucaffe.pycaffe as caffe
from osucaffe.pycaffe import layers as L
from osucaffe.pycaffe import params as P
from osucaffe.pycaffe.net_spec import to_proto

from .nets import write

SHAPES = [{"dim": [4, 1, 28, 28]}, {"dim": [4, 1, 1, 1]}]
XAVIER = {"type": "xavier"}


def lenet():
    n = caffe.NetSpec()
    n.data, n.label = L.DummyData(shape=SHAPES, transform_param={"scale": 1 / 255}, ntop=2)
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=20, weight_filler=XAVIER)
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.ip1 = L.InnerProduct(n.pool1, num_output=50, weight_filler=XAVIER)
    n.relu1 = L.ReLU(n.ip1, in_place=True)
    n.ip2 = L.InnerProduct(
        n.relu1, num_output=10, weight_filler=XAVIER, param=[{"lr_mult": 1}, {"lr_mult": 2}]
    )
    n.loss = L.SoftmaxWithLoss(n.ip2, n.label, loss_weight=0.5)
    return n


def test_names_are_those_of_the_attributes(tmp_path):
    net = lenet().to_proto()
    assert [layer.name for layer in net.layer] == [
        "data", "conv1", "pool1", "ip1", "relu1", "ip2", "loss"
    ]  # fmt: skip
    relu = net.layer[4]
    assert relu.bottom == relu.top == ["ip1"]
    assert net.layer[5].bottom == ["ip1"]
    assert list(net.layer[0].top) == ["data", "label"]
    loaded = caffe.Net(write(tmp_path, str(net)), caffe.TEST)
    assert len(loaded.layers) == 7
    loaded.forward()


def test_fields_go_where_they_belong():
    net = lenet().to_proto()
    data, conv, pool = net.layer[:3]
    assert [list(shape.dim) for shape in data.dummy_data_param.shape] == [
        [4, 1, 28, 28], [4, 1, 1, 1]
    ]  # fmt: skip
    assert data.transform_param.scale == pytest.approx(1 / 255)
    assert list(conv.convolution_param.kernel_size) == [5]
    assert conv.convolution_param.weight_filler.type == "xavier"
    assert pool.pooling_param.pool == caffe.proto.caffe_pb2.PoolingParameter.MAX
    assert [param.lr_mult for param in net.layer[5].param] == [1, 2]
    assert list(net.layer[6].loss_weight) == [0.5]


def test_names_are_made_where_none_are_given(tmp_path):
    data, label = L.DummyData(shape=SHAPES, ntop=2)
    first = L.ReLU(L.InnerProduct(data, num_output=3), in_place=True)
    loss = L.SoftmaxWithLoss(L.InnerProduct(first, num_output=2), label)
    net = loss.to_proto()
    assert [layer.name for layer in net.layer] == [
        "DummyData1", "InnerProduct1", "ReLU1", "InnerProduct2", "SoftmaxWithLoss1"
    ]  # fmt: skip
    assert list(net.layer[0].top) == ["DummyData1", "DummyData2"]
    assert net == to_proto(loss)
    caffe.Net(write(tmp_path, str(net)), caffe.TRAIN).forward()


def test_layers_without_tops(tmp_path):
    n = caffe.NetSpec()
    n.data, n.data2 = L.DummyData(shape={"dim": 3}, ntop=2)
    n.silence = L.Silence(n.data, ntop=0)
    n.silence2 = L.Silence(n.data2, ntop=0)
    net = n.to_proto()
    assert [layer.name for layer in net.layer] == ["data", "silence", "silence2"]
    assert len(caffe.Net(write(tmp_path, str(net)), caffe.TEST).forward()) == 0


def test_inputs_must_be_tops():
    data = L.DummyData(ntop=2)
    pattern = r"^Silence input 0 is not a Top \(type is <class 'tuple'>\)$"
    with pytest.raises(TypeError, match=pattern):
        L.Silence(data, ntop=0)
    L.Silence(*data, ntop=0)


def test_unknown_names():
    n = lenet()
    with pytest.raises(AttributeError, match="conv9"):
        _ = n.conv9
    with pytest.raises(AttributeError, match="NoSuchParameter"):
        _ = P.NoSuch
    n.bad = L.ReLU(n.ip2, no_such_field=1)
    with pytest.raises(AttributeError, match="no_such_field"):
        n.to_proto()


def test_the_layer_of_a_wrong_field_is_named():
    for settings, message in (
        ({"num_output": "x"}, r'layer "fc", num_output: InnerProductParameter\.num_output: '),
        ({"weight_filler": {"std": "x"}}, r'layer "fc", weight_filler: FillerParameter\.std: '),
        ({"param": [{"lr_mult": "x"}]}, r'layer "fc", param: ParamSpec\.lr_mult: '),
        ({"loss_weight": ["x"]}, r'layer "fc", loss_weight: '),
    ):
        n = caffe.NetSpec()
        n.fc = L.InnerProduct(L.Input(), **settings)
        with pytest.raises(TypeError, match=message):
            n.to_proto()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: L.InnerProduct(num_ouput=3), AttributeError,
         r"InnerProduct has no field 'num_ouput' \(did you mean 'num_output'\?\)"),
        (lambda: L.InnerProduct(weight_filler={"typ": "xavier"}), AttributeError,
         r"FillerParameter has no field 'typ' \(did you mean 'type'\?\)"),
        (lambda: L.InnerProdct(num_output=3), AttributeError,
         "InnerProdct has no field 'num_output': no layer type of this name has any"),
        (lambda: L.InnerProduct(num_output="x"), TypeError, r"InnerProductParameter\.num_output: "),
        (lambda: L.InnerProduct(num_output=-1), ValueError, r"InnerProductParameter\.num_output: "),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(make, error, message):
    with pytest.raises(error, match=message):
        to_proto(make())


def test_items_are_attributes():
    n = lenet()
    n["extra"] = L.Power(n["ip2"], power=2, name="named")
    assert n.extra is n["extra"]
    assert n.to_proto().layer[-1].name == "named"
    assert list(n.to_proto().layer[-1].top) == ["extra"]
    assert n.keys() == list(n.tops)
    assert n.vals()[-1] is n.extra
    n.update("extra", {"scale": 3})  # SSD's
    assert n.to_proto().layer[-1].power_param.scale == 3
    del n["extra"]
    assert n.to_proto().layer[-1].name == "loss"


def test_deep_nets():
    top = L.Input(shape={"dim": [1]})
    for _ in range(3000):
        top = L.ReLU(top)
    assert len(to_proto(top).layer) == 3001
