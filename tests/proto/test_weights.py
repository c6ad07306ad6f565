"""Checks model files, binary and HDF5, against those that C++ Caffe 1.0 wrote."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from osucaffe.errors import UserError
from osucaffe.proto import (
    BlobProto,
    NetParameter,
    SolverState,
    array_to_blob,
    blob_to_array,
    has_values,
    read_model,
    read_text,
    read_weights,
    write_state,
    write_weights,
)


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


def test_files_are_written_as_caffe_writes_them(tmp_path: Path, formats: Path) -> None:
    reference = formats / "lenet_iter_200.caffemodel"
    net = read_model(reference)
    for layer in net.layer:  # through arrays, as a net would
        for blob in layer.blobs:
            blob.CopyFrom(array_to_blob(blob_to_array(blob)))
    write_weights(tmp_path / "net.caffemodel", net)
    assert (tmp_path / "net.caffemodel").read_bytes() == reference.read_bytes()
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
    net.layer.add(name="a").blobs.extend([BlobProto(), array_to_blob(np.ones(2, np.float32))])
    write_weights(tmp_path / "net.h5", net)
    with h5py.File(tmp_path / "net.h5") as file:
        assert list(file["data/a"]) == ["1"]
    blobs = read_weights(tmp_path / "net.h5").layer[0].blobs
    assert [has_values(blob) for blob in blobs] == [False, True]


def test_old_model_files_are_upgraded(tmp_path: Path) -> None:
    net = NetParameter()
    old = net.layers.add(name="ip", type="INNER_PRODUCT")
    old.blobs.add(num=1, channels=1, height=2, width=3, data=range(6))
    (tmp_path / "old.caffemodel").write_bytes(net.SerializeToString())
    for read in (read_weights, read_model):
        layer = read(tmp_path / "old.caffemodel").layer[0]
        assert layer.name == "ip"
        assert np.array_equal(blob_to_array(layer.blobs[0]).ravel(), np.arange(6))
    assert layer.type == "InnerProduct"


def test_hdf5_that_leads_into_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(24))

    def values(group: h5py.Group) -> None:
        group.create_dataset("0", shape=(6,), dtype="f4", external=[(tmp_path / "secret", 0, 24)])

    def link(group: h5py.Group) -> None:
        group["0"] = h5py.ExternalLink("secret.h5", "/data")

    def number(group: h5py.Group) -> None:
        group["2000000"] = np.zeros(3, np.float32)

    def giant(group: h5py.Group) -> None:
        group.create_dataset("0", shape=(1 << 40,), dtype="f4", chunks=(1 << 10,))

    for make, message in (
        (values, "data/ip/0: its values lie in another file"),
        (link, "data/ip/0: 0 is a link into another file"),
        (number, '"2000000" is not from 0 to 999'),
        (giant, r"data/ip/0: it has shape \(1099511627776,\)"),
    ):
        with h5py.File(tmp_path / "m.caffemodel.h5", "w") as file:
            make(file.create_group("data/ip"))
        with pytest.raises(UserError, match=message):
            read_weights(tmp_path / "m.caffemodel.h5")


def test_what_is_no_model(tmp_path: Path, formats: Path) -> None:
    with pytest.raises(UserError, match=r"none: cannot read it: No such file"):
        read_weights(tmp_path / "none")
    with pytest.raises(UserError, match="it is a folder, expected a file"):
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
    with pytest.raises(
        UserError, match=r'layer "conv1" .*, blob 1: a blob of shape 20 has 7 values'
    ):
        read_weights(tmp_path / "net.caffemodel")


VARINT, LENGTH, FIXED32 = 0, 2, 5  # wire types


def wire(number: int, kind: int, value: int | bytes) -> bytes:
    """A field of a binary message, whatever any schema says."""

    def varint(n: int) -> bytes:
        return bytes([n & 0x7F | 0x80]) + varint(n >> 7) if n > 0x7F else bytes([n])

    content = value if isinstance(value, bytes) else varint(value)
    return varint(number << 3 | kind) + (varint(len(content)) if kind == LENGTH else b"") + content


INTERP = wire(1, VARINT, 33) + wire(2, VARINT, 33) + wire(3, VARINT, 8)
FILLER = wire(1, LENGTH, b"constant") + wire(2, FIXED32, b"\0\0\x80\x3f")
OTHERS = {
    "PSPNet's interp_param, as input_param": wire(143, LENGTH, INTERP),
    "a message that ours cannot read": wire(143, LENGTH, wire(1, LENGTH, b"\xff\xff")),
    "text where ours has a message": wire(139, LENGTH, b"no message at all"),
    "SegNet's bn_param": wire(45, LENGTH, wire(1, LENGTH, FILLER) + wire(3, VARINT, 1)),
    "ceil_mode, as round_mode": wire(121, LENGTH, wire(13, VARINT, 1)),
    "a number where ours has a message": wire(100, VARINT, 7),
    "a message where ours has a number": wire(10, LENGTH, FILLER),
    "a fixed number where ours has names": wire(3, FIXED32, b"abcd"),
    "R-CNN's roi_pooling_param": wire(8266711, LENGTH, wire(3, FIXED32, b"\0\0\x80\x3d")),
    "an unpaired group's end within a message": wire(131, LENGTH, b"\x0c"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_fields_of_forks_do_not_disturb_the_weights(tmp_path: Path, what: str) -> None:
    values = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    blob = array_to_blob(values).SerializeToString()
    layer = wire(1, LENGTH, b"a") + OTHERS[what] + wire(2, LENGTH, b"BN") + wire(7, LENGTH, blob)
    layer += OTHERS[what] + wire(7, LENGTH, blob)
    path = tmp_path / "fork.caffemodel"
    path.write_bytes(wire(1, LENGTH, b"net") + wire(100, LENGTH, layer) + wire(200, VARINT, 1))
    read = read_weights(path)
    assert [(each.name, each.type) for each in read.layer] == [("a", "BN")]
    for found in read.layer[0].blobs:
        assert np.array_equal(blob_to_array(found), values)
    assert len(read.layer[0].blobs) == 2
    write_weights(tmp_path / "ours.caffemodel", read)
    assert arrays(read_model(tmp_path / "ours.caffemodel")).keys() == {"a"}
    if what == "a message that ours cannot read":
        with pytest.raises(UserError, match="not a model file"):
            read_model(path)  # a whole net cannot be had of every fork


@pytest.mark.parametrize("version", [0, 1])
def test_old_files_of_forks(tmp_path: Path, version: int) -> None:
    """V1 with a type (47) and fields (42, 43) of its own; V0 with its blobs in the inner layer."""
    blob = array_to_blob(np.float32([1, 2])).SerializeToString()
    if version:
        layer = wire(4, LENGTH, b"a") + wire(5, VARINT, 47) + wire(6, LENGTH, blob)
        layer += wire(42, VARINT, 3) + wire(43, LENGTH, b"\xff\xff")
    else:
        inner = wire(1, LENGTH, b"a") + wire(2, LENGTH, b"bn") + wire(50, LENGTH, blob)
        layer = wire(1, LENGTH, inner + wire(5, VARINT, 1)) + wire(2, LENGTH, b"data")
    path = tmp_path / "old.caffemodel"
    path.write_bytes(wire(2, LENGTH, layer))
    assert np.array_equal(arrays(read_weights(path))["a"], [[1, 2]])


@pytest.mark.parametrize("version", [1, 2])
def test_a_name_in_gbk_is_that_of_the_prototxt(tmp_path: Path, version: int) -> None:
    name = "卷积1".encode("gbk")
    (tmp_path / "net.prototxt").write_bytes(b'layer { name: "' + name + b'" }')
    blob = array_to_blob(np.float32([1, 2])).SerializeToString()
    if version == 1:
        layer = wire(2, LENGTH, wire(4, LENGTH, name) + wire(6, LENGTH, blob))
    else:
        layer = wire(100, LENGTH, wire(1, LENGTH, name) + wire(7, LENGTH, blob))
    (tmp_path / "net.caffemodel").write_bytes(layer)
    net = read_text(tmp_path / "net.prototxt", NetParameter)
    assert read_weights(tmp_path / "net.caffemodel").layer[0].name == net.layer[0].name


@pytest.mark.parametrize(("kind", "dtype"), [(0, "<f8"), (1, "<f4"), (2, "<f2")])
def test_raw_blobs_of_nvidia_caffe(tmp_path: Path, kind: int, dtype: str) -> None:
    values = np.linspace(-2, 2, 6).reshape(2, 3).astype(dtype)
    shape = wire(7, LENGTH, wire(1, LENGTH, b"\2\3"))
    data = wire(10, VARINT, kind) + wire(12, LENGTH, values.tobytes())
    diff = wire(11, VARINT, kind) + wire(13, LENGTH, (-values).tobytes())
    blobs = wire(7, LENGTH, shape + data) + wire(7, LENGTH, shape + data + diff)
    path = tmp_path / "net.caffemodel"
    path.write_bytes(wire(100, LENGTH, wire(1, LENGTH, b"a") + blobs))
    plain, both = read_weights(path).layer[0].blobs
    for blob in (plain, both):
        found = blob_to_array(blob)
        assert found.dtype == (np.float64 if kind == 0 else np.float32)
        assert np.array_equal(found, values)
    assert np.array_equal(blob_to_array(both, "diff"), -values)
    assert not plain.diff
    assert not plain.HasField("raw_data")
    data = wire(10, VARINT, kind) + wire(12, LENGTH, values.tobytes()[:-1])
    path.write_bytes(wire(100, LENGTH, wire(1, LENGTH, b"a") + wire(7, LENGTH, shape + data)))
    with pytest.raises(UserError, match='"a", blob 0: a blob of shape 2x3 has 5 values'):
        read_weights(path)
