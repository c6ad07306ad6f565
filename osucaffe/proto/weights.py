"""Owns model files: the parameters of a net's layers, as .caffemodel or as HDF5."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, naming
from ..files import replacing
from .blobs import blob_to_array, check_blob, fill_blob, has_values
from .caffe_pb2 import BlobProto, NetParameter
from .storage import hdf5_file, is_hdf5, read_message, write_message
from .upgrade import upgrade_net

if TYPE_CHECKING:
    import h5py

_WHAT = "model file (.caffemodel or .caffemodel.h5)"


def read_weights(path: str | Path) -> NetParameter:
    """The layers of a model file, with their blobs; told by its content, not its name.

    HDF5 files hold names and blobs only, and leave out parameters that another layer owns: such a
    blob is empty here (`has_values`). Raises UserError.
    """
    net = _read_hdf5(path) if is_hdf5(path) else _read_binary(path)
    if not net.layer:
        raise UserError(f"{path}: holds no layers, so it is not a {_WHAT}")
    return net


def write_weights(path: str | Path, net: NetParameter, *, hdf5: bool | None = None) -> None:
    """Write a model file, whole or not at all. Raises UserError.

    hdf5: whether as HDF5; by default, if the name ends in .h5.
    """
    if Path(path).suffix == ".h5" if hdf5 is None else hdf5:
        with replacing(path) as temporary, hdf5_file(temporary, "w", _WHAT) as file:
            _write_hdf5(file, net)
    else:
        write_message(path, net)


def _read_binary(path: str | Path) -> NetParameter:
    net = read_message(path, NetParameter, _WHAT)
    if net.layers or net.input:
        with naming(path):
            net = upgrade_net(net)
    for layer in net.layer:
        for i, blob in enumerate(layer.blobs):
            with naming(f'{path}: layer "{layer.name}", blob {i}'):
                check_blob(blob)
    return net


def _read_hdf5(path: str | Path) -> NetParameter:
    net = NetParameter()
    with hdf5_file(path, "r", _WHAT) as file:
        if "data" not in file:
            raise UserError(f'{path}: has no group "data", so it is not a {_WHAT}')
        _read_group(file["data"], file.get("diff"), "", net)
    return net


def _read_group(data: h5py.Group, diff: h5py.Group | None, name: str, net: NetParameter) -> None:
    """Add the layer of this group, and those of its subgroups: a layer's name may have slashes."""
    import h5py

    groups = [key for key, item in data.items() if isinstance(item, h5py.Group)]
    if name and (len(groups) < len(data) or not groups):
        layer = net.layer.add(name=name)
        indices = sorted(int(key) for key in data if key not in groups)
        for index in range(indices[-1] + 1 if indices else 0):
            blob = layer.blobs.add()
            if str(index) in data:
                gradients = diff[str(index)][()] if diff and str(index) in diff else None
                fill_blob(blob, data[str(index)][()], gradients)
    for key in groups:
        inner = diff.get(key) if diff else None
        _read_group(data[key], inner, f"{name}/{key}" if name else key, net)


def _write_hdf5(file: h5py.File, net: NetParameter) -> None:
    data = file.create_group("data")
    with_diff = any(_has_diff(blob) for layer in net.layer for blob in layer.blobs)
    diff = file.create_group("diff") if with_diff else None
    for layer in net.layer:
        values = data.require_group(layer.name)
        gradients = diff.require_group(layer.name) if diff is not None else None
        for i, blob in enumerate(layer.blobs):
            if has_values(blob):
                values[str(i)] = blob_to_array(blob)
            if gradients is not None and _has_diff(blob):
                gradients[str(i)] = blob_to_array(blob, "diff")


def _has_diff(blob: BlobProto) -> bool:
    return len(blob.diff) > 0 or len(blob.double_diff) > 0
