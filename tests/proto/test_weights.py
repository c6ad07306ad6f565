"""Checks model files, binary and HDF5, against those that C++ Caffe 1.0 wrote."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.proto import (
    NetParameter,
    SolverState,
    array_to_blob,
    blob_to_array,
    has_values,
    read_weights,
    write_state,
    write_weights,
)

SHAPES = {
    "conv1": [(20, 1, 5, 5), (20,)],
    "conv2": [(50, 20, 5, 5), (50,)],
    "ip1": [(500, 800), (500,)],
    "ip2": [(10, 500), (10,)],
}


def arrays(net: NetParameter) -> dict[str, list[np.ndarray]]:
    return {layer.name: [blob_to_array(b) for b in layer.blobs] for layer in net.layer}


def hdf5_items(path: Path) -> dict[str, tuple]:
    """Every group and data set with its type and values."""
    found: dict[str, tuple] = {}

    def visit(name: str, item: h5py.HLObject) -> None:
        dataset = isinstance(item, h5py.Dataset)
        found[name] = (item.dtype, item.shape, item[()].tobytes()) if dataset else ()

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def test_both_forms_of_the_reference(formats: Path) -> None:
    binary = arrays(read_weights(formats / "lenet_iter_200.caffemodel"))
    hdf5 = arrays(read_weights(formats / "h5lenet_iter_200.caffemodel.h5"))
    assert sorted(binary) == sorted(hdf5)
    for name, blobs in binary.items():
        assert [blob.shape for blob in blobs] == SHAPES.get(name, [])
        assert all(blob.std() > 1e-4 for blob in blobs)
        # Two trainings with one seed: the same to rounding.
        for one, other in zip(blobs, hdf5[name], strict=True):
            assert np.allclose(one, other, rtol=1e-3, atol=1e-5)


def test_binary_is_written_as_caffe_writes_it(tmp_path: Path, formats: Path) -> None:
    reference = formats / "lenet_iter_200.caffemodel"
    net = read_weights(reference)
    for layer in net.layer:  # through arrays, as a net would
        for blob in layer.blobs:
            blob.CopyFrom(array_to_blob(blob_to_array(blob)))
    write_weights(tmp_path / "net.caffemodel", net)
    assert (tmp_path / "net.caffemodel").read_bytes() == reference.read_bytes()


def test_hdf5_is_written_as_caffe_writes_it(tmp_path: Path, formats: Path) -> None:
    reference = formats / "h5lenet_iter_200.caffemodel.h5"
    write_weights(tmp_path / "net.caffemodel.h5", read_weights(reference))
    assert hdf5_items(tmp_path / "net.caffemodel.h5") == hdf5_items(reference)


def test_the_form_is_told_by_content(tmp_path: Path, formats: Path) -> None:
    net = read_weights(formats / "lenet_iter_200.caffemodel")
    write_weights(tmp_path / "net.h5", net)
    (tmp_path / "net.h5").rename(tmp_path / "net.caffemodel")
    read = arrays(read_weights(tmp_path / "net.caffemodel"))
    for name, blobs in arrays(net).items():
        assert all(map(np.array_equal, blobs, read[name]))


@pytest.mark.parametrize("name", ["net.caffemodel", "net.caffemodel.h5"])
def test_gradients_doubles_scalars_and_slashes(tmp_path: Path, name: str) -> None:
    net = NetParameter()
    double = np.linspace(0, 1, 6).reshape(2, 3)
    net.layer.add(name="inception_3a/1x1").blobs.append(array_to_blob(double, -double))
    net.layer.add(name="inception_3a").blobs.append(array_to_blob(np.float32(7).reshape(())))
    net.layer.add(name="inception_3a/relu")
    write_weights(tmp_path / name, net)
    read = {layer.name: layer for layer in read_weights(tmp_path / name).layer}
    assert sorted(read) == ["inception_3a", "inception_3a/1x1", "inception_3a/relu"]
    blob = read["inception_3a/1x1"].blobs[0]
    assert np.array_equal(blob_to_array(blob), double)
    assert np.array_equal(blob_to_array(blob, "diff"), -double)
    scalar = blob_to_array(read["inception_3a"].blobs[0])
    assert scalar.shape == ()
    assert scalar == 7
    assert scalar.dtype == np.float32
    assert not read["inception_3a/relu"].blobs


def test_hdf5_leaves_out_what_another_layer_owns(tmp_path: Path) -> None:
    net = NetParameter()
    layer = net.layer.add(name="a")
    layer.blobs.add()
    layer.blobs.append(array_to_blob(np.ones(2, np.float32)))
    write_weights(tmp_path / "net.h5", net)
    with h5py.File(tmp_path / "net.h5") as file:
        assert list(file["data/a"]) == ["1"]
    assert [has_values(b) for b in read_weights(tmp_path / "net.h5").layer[0].blobs] == [
        False,
        True,
    ]


def test_old_model_files_are_upgraded(tmp_path: Path) -> None:
    net = NetParameter()
    old = net.layers.add(name="ip", type="INNER_PRODUCT")
    old.blobs.add(num=1, channels=1, height=2, width=3, data=range(6))
    (tmp_path / "old.caffemodel").write_bytes(net.SerializeToString())
    layer = read_weights(tmp_path / "old.caffemodel").layer[0]
    assert (layer.name, layer.type) == ("ip", "InnerProduct")
    assert np.array_equal(blob_to_array(layer.blobs[0]).ravel(), np.arange(6))


def test_what_is_no_model(tmp_path: Path, formats: Path) -> None:
    with pytest.raises(UserError, match=r"none: cannot read it: No such file"):
        read_weights(tmp_path / "none")
    with pytest.raises(UserError, match="cannot read it: Is a directory"):
        read_weights(tmp_path)
    for name in ("lenet_iter_200.solverstate", "v1.prototxt", "mnist200_mean.binaryproto"):
        with pytest.raises(UserError, match=rf"{name}: .*not a model file"):
            read_weights(formats / name)
    write_state(tmp_path / "s.h5", SolverState(iter=1))
    with pytest.raises(UserError, match=r's\.h5: has no group "data"'):
        read_weights(tmp_path / "s.h5")


def test_a_blob_whose_values_are_missing(tmp_path: Path, formats: Path) -> None:
    net = read_weights(formats / "lenet_iter_200.caffemodel")
    del net.layer[1].blobs[1].data[7:]
    write_weights(tmp_path / "net.caffemodel", net)
    with pytest.raises(UserError, match='layer "conv1", blob 1: a blob of shape 20 has 7 values'):
        read_weights(tmp_path / "net.caffemodel")
