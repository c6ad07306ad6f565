"""Model files: the parameters of a net's layers, as .caffemodel or as HDF5."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from google.protobuf.message import DecodeError

from ..errors import UserError, naming
from ..parsing import as_int
from .blobs import blob_to_array, check_blob, fill_blob, has_values, unpack_raw
from .caffe_pb2 import BlobProto, LayerParameter, LayerWeights, NetParameter, NetWeights
from .files import read_message, write_message
from .hdf5 import Group, is_hdf5, reading_hdf5, write_hdf5
from .text import decode
from .titles import title
from .upgrade import upgrade_net

if TYPE_CHECKING:
    import h5py

_READERS = "osucaffe"
"""The data set of our own HDF5 files that holds the layers that read images, as a message."""

_WHAT = "model file (.caffemodel or .caffemodel.h5)"
_MAX_BLOBS = 1000
"""Of a layer: more in a file are a fault of the file."""
AnyWeights = NetWeights | NetParameter
"""What has layers with names and blobs."""
_Model = TypeVar("_Model", NetWeights, NetParameter)


def read_weights(path: str | Path) -> NetWeights:
    """The names and blobs of a model file's layers; told by its content, not its name.

    All else is left alone (but for what tells how images entered the net), because forks of Caffe
    gave one field number to different things: what their layers hold besides may mean anything, or
    not be readable. HDF5 files leave out parameters that another layer owns: such a blob is empty
    here (`has_values`). Raises UserError.
    """
    if is_hdf5(path):
        return _read_hdf5(path)
    weights = read_message(path, NetWeights, _WHAT)
    if weights.layers:
        weights = _without_v1(weights)
    weights.DiscardUnknownFields()  # else they would be written again
    return _checked(path, weights)


def read_model(path: str | Path) -> AnyWeights:
    """A model file as the whole net that it is, upgraded to today's form. Raises UserError.

    The settings of its layers are taken for Caffe's own: those of a fork may be lost. An HDF5 file
    holds none.
    """
    if is_hdf5(path):
        return _read_hdf5(path)
    net = read_message(path, NetParameter, _WHAT)
    if net.layers or net.input:
        with naming(path):
            net = upgrade_net(net)
    return _checked(path, net)


def write_weights(
    path: str | Path, net: AnyWeights, *, hdf5: bool | None = None, checksum: bool = False
) -> None:
    """Write a model file, whole or not at all. Raises UserError.

    hdf5: whether as HDF5; by default, if the name ends in .h5. checksum: with one, as in
    `write_state`.
    """
    if Path(path).suffix == ".h5" if hdf5 is None else hdf5:
        with naming(path):
            check_hdf5_names(layer for layer in net.layer if layer.blobs)
        write_hdf5(path, partial(_write_hdf5, net=net), checksum=checksum)
    else:
        write_message(path, net, checksum=checksum)


def check_hdf5_names(layers: Iterable[LayerParameter | LayerWeights]) -> None:
    """UserError where HDF5 cannot hold the weights of these layers: it keeps them by name."""
    names: set[str] = set()
    for layer in layers:
        if not layer.name or layer.name in names:
            problem = ", name: another layer has it too" if layer.name else ""
            raise UserError(
                f"{title(layer)}{problem}: HDF5 files keep weights by name; give each layer a name "
                "of its own, or write binary files (snapshot_format: BINARYPROTO)"
            )
        names.add(layer.name)


def _without_v1(weights: NetWeights) -> NetWeights:
    """The layers of a V0 or V1 file as today's, but for the types, which forks number otherwise."""
    today = NetWeights(name=weights.name, layer=weights.layer)
    for old in weights.layers:
        inner = old.layer if old.HasField("layer") else old
        name = decode(inner.name) if isinstance(inner.name, bytes) else inner.name
        layer = today.layer.add(name=name, blobs=inner.blobs, top=old.top)
        for field in ("transform_param", "image_data_param"):
            if old.HasField(field):
                with suppress(DecodeError):  # a fork may have another message there
                    getattr(layer, field).MergeFromString(getattr(old, field))
    return today


def _checked(path: str | Path, net: _Model) -> _Model:
    """The net of a binary file, if its blobs have as many values as their shapes ask for."""
    _refuse_empty(path, net)
    for layer in net.layer:
        if isinstance(layer.name, bytes):  # protobuf's way with what is not UTF-8
            layer.name = decode(layer.name)
        for i, blob in enumerate(layer.blobs):
            with naming(f"{path}: {title(layer)}, blob {i}"):
                unpack_raw(blob)
                check_blob(blob)
    return net


def _refuse_empty(path: str | Path, net: AnyWeights) -> None:
    if not net.layer:
        raise UserError(f"{path}: holds no layers, so it is not a {_WHAT}")


def reads_images(layer: LayerParameter | LayerWeights) -> bool:
    """Whether a layer brings images, and its settings tell how they entered the net."""
    known = layer.HasField("transform_param") or layer.type in ("Data", "ImageData", "WindowData")
    return known and len(layer.top) > 0 and not layer.blobs


def _read_hdf5(path: str | Path) -> NetWeights:
    net = NetWeights()
    with reading_hdf5(path, _WHAT) as file:
        data = _group(file, "data")
        if data is None:
            raise UserError(f'{path}: has no group "data", so it is not a {_WHAT}')
        if _READERS in file:
            try:
                net.ParseFromString(file.array(_READERS).tobytes())
            except DecodeError as error:
                raise ValueError(f'data set "{_READERS}": {error}') from None
        _read_group(data, _group(file, "diff"), "", net)
    _refuse_empty(path, net)
    return net


def _group(parent: Group | None, name: str) -> Group | None:
    """The group of this name in another, if there is one."""
    found = parent.get(name) if parent is not None else None
    return found if isinstance(found, Group) else None


def _read_group(data: Group, diff: Group | None, name: str, net: NetWeights) -> None:
    """Add the layer of this group, and those of its subgroups: a layer's name may have slashes."""
    groups = {key: item for key, item in data.items() if isinstance(item, Group)}
    known = not data and any(layer.name == name for layer in net.layer)  # as one that reads images
    if name and not known and (len(groups) < len(data) or not groups):
        layer = net.layer.add(name=name)
        with_blobs = (key for key in data if key not in groups)
        indices = sorted(as_int(key, 0, _MAX_BLOBS - 1) for key in with_blobs)
        for index in range(indices[-1] + 1 if indices else 0):
            blob = layer.blobs.add()
            if str(index) in data:
                gradients = diff.array(str(index)) if diff and str(index) in diff else None
                fill_blob(blob, data.array(str(index)), gradients)
    for key, inner in groups.items():
        _read_group(inner, _group(diff, key), f"{name}/{key}" if name else key, net)


def _write_hdf5(file: h5py.File, net: AnyWeights) -> None:
    data = file.create_group("data")
    readers = NetWeights()
    for layer in filter(reads_images, net.layer):
        readers.layer.add().ParseFromString(layer.SerializeToString())
    readers.DiscardUnknownFields()
    if readers.layer:
        file[_READERS] = np.frombuffer(readers.SerializeToString(), np.uint8)
    with_diff = any(_has_diff(blob) for layer in net.layer for blob in layer.blobs)
    diff = file.create_group("diff") if with_diff else None
    for layer in net.layer:
        if not layer.name:  # it has no weights: see `check_hdf5_names`
            continue
        values = data.require_group(layer.name)
        gradients = diff.require_group(layer.name) if diff is not None else None
        for i, blob in enumerate(layer.blobs):
            if has_values(blob):
                values[str(i)] = blob_to_array(blob)
            if gradients is not None and _has_diff(blob):
                gradients[str(i)] = blob_to_array(blob, "diff")


def _has_diff(blob: BlobProto) -> bool:
    return len(blob.diff) > 0 or len(blob.double_diff) > 0
