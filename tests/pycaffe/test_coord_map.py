"""How coordinates map from blob to blob, and the Crop layers that follow."""

from __future__ import annotations

import numpy as np
import pytest

import osucaffe.pycaffe as caffe
from osucaffe.pycaffe import layers as L
from osucaffe.pycaffe import params as P
from osucaffe.pycaffe.coord_map import AxisMismatchException, compose, coord_map_from_to, crop

from .nets import write


def spec(kernel=3, stride=1, pad=0, pool=2, up=2, up_pad=0):
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 1, 100, 100]})
    n.aux = L.Input(shape={"dim": [2, 1, 20, 20]})
    n.conv = L.Convolution(n.data, num_output=10, kernel_size=kernel, stride=stride, pad=pad)
    n.pool = L.Pooling(n.conv, pool=P.Pooling.MAX, kernel_size=pool, stride=pool, pad=0)
    n.deconv = L.Deconvolution(
        n.pool,
        convolution_param={"num_output": 10, "kernel_size": 2 * up, "stride": up, "pad": up_pad},
    )
    return n


def mapped(n):
    return coord_map_from_to(n.deconv, n.data)


@pytest.mark.parametrize(("size", "shift"), [(2, 0), (4, -1)])
def test_down_and_up_again(size, shift):
    assert mapped(spec(pool=size, up=size)) == (1, 1, shift)


def test_layers_that_pass_coordinates_through():
    n = spec()
    expected = mapped(n)
    n.relu = L.ReLU(n.deconv)
    n.conv1x1 = L.Convolution(n.relu, num_output=10, kernel_size=1, stride=1, pad=0)
    for top in (n.relu, n.conv1x1):
        assert coord_map_from_to(top, n.data) == expected


def test_padding_shifts():
    _, scale, shift = mapped(spec())
    assert mapped(spec(pad=7))[1:] == (scale, shift - 7)
    assert mapped(spec(up_pad=7))[1:] == (scale, shift + 7)
    assert mapped(spec(pad=7, up_pad=7))[1:] == (scale, shift)


def test_several_inputs_map_alike():
    n = spec()
    n.first, n.second = L.Convolution(
        n.data, n.aux, ntop=2, num_output=10, kernel_size=5, stride=2, pad=0
    )
    assert coord_map_from_to(n.first, n.data) == coord_map_from_to(n.second, n.aux)


def test_windows_that_are_no_squares():
    rows, columns = mapped(spec(3, 1, 0)), mapped(spec(5, 2, 10))
    axis, scale, shift = mapped(spec([3, 5], [1, 2], [0, 10]))
    assert axis == rows[0] == columns[0] == 1
    assert (scale[0], shift[0]) == rows[1:]
    assert (scale[1], shift[1]) == columns[1:]


def test_volumes():
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 3, 100, 100, 100]})
    n.conv = L.Convolution(
        n.data, num_output=10, kernel_size=[3, 3, 3], stride=[1, 1, 1], pad=[0, 1, 2]
    )
    n.pool = L.Pooling(n.conv, pool=P.Pooling.MAX, kernel_size=2, stride=2, pad=0)
    n.deconv = L.Deconvolution(n.pool, num_output=10, kernel_size=4, stride=2, pad=0)
    axis, scale, shift = mapped(n)
    assert axis == 1
    assert np.all(scale == 1)
    assert (np.diff(shift) == -1).all()


def test_a_crop_shifts():
    n = spec()
    n.crop = L.Crop(n.deconv, n.data, axis=2, offset=6)
    axis, scale, shift = mapped(n)
    assert coord_map_from_to(n.crop, n.data) == (axis, scale, shift + 6)


def test_the_crop_fits(tmp_path):
    n = spec(pad=50, pool=4, up=4)
    n.crop = crop(n.deconv, n.data)
    param = n.to_proto().layer[-1].crop_param
    assert param.axis == 2
    assert list(param.offset) == [51]
    n.deconv.fn.params["convolution_param"]["num_output"] = 1
    net = caffe.Net(write(tmp_path, str(n.to_proto())), caffe.TEST)
    assert net.blobs["crop"].shape == (2, 1, 100, 100)


def test_what_cannot_be_mapped():
    n = spec()
    n.ip = L.InnerProduct(n.deconv, num_output=10)
    with pytest.raises(RuntimeError, match="connected by spatial layers"):
        coord_map_from_to(n.ip, n.data)
    n = spec(pool=3, up=2)
    with pytest.raises(AssertionError, match="scale mismatch"):
        crop(n.deconv, n.data)
    n = spec(up_pad=10)
    with pytest.raises(AssertionError, match="negative"):
        crop(n.deconv, n.data)
    n = spec(kernel=2)
    with pytest.raises(AssertionError, match="noninteger"):
        crop(n.deconv, n.data)
    with pytest.raises(AxisMismatchException):
        compose((1, 1, 0), (2, 1, 0))
