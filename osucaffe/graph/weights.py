"""The values of a net's parameters: initial values, those in model files, and which of these
have other shapes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import filler
from ..arena import Parameter
from ..backends.backend import Backend
from ..backends.tensor import Shape, Tensor
from ..backends.uploads import available_memory
from ..blob import Blob
from ..errors import UserError, listed
from ..layers.base import Context, Layer
from ..proto import (
    AnyWeights,
    blob_fits,
    blob_shape,
    blob_to_array,
    caffe_pb2,
    fill_blob,
    has_values,
    label,
)
from ..proto.blobs import check_blob
from .assembly import assemble
from .parameters import by_name
from .prototxt.filter import filter_layers, net_state
from .prototxt.splits import insert_splits

log = logging.getLogger("osucaffe")


def check_memory(parameters: Sequence[Parameter], backend: Backend, *, gradients: bool) -> None:
    """UserError where parameters would take more of the host's memory than is free: their first
    values, and on the CPU what they become and their gradients. The system would end the process.
    """
    copies = 1 + (1 + gradients) * (backend.name == "cpu")
    count = sum(parameter.blob.data.count for parameter in parameters)
    needed = 4 * count * copies
    if needed <= (free := available_memory()):
        return
    largest = max(parameters, key=lambda parameter: parameter.blob.data.count)
    raise UserError(
        f"the net's {count:,} parameters take {needed / 2**30:.1f} GiB of memory, and "
        f"{free / 2**30:.1f} GiB are free; the largest, of {largest.blob.data.count:,} numbers, is "
        f'layer "{largest.layer}"\'s: make the net smaller, or take a machine with more memory'
    )


def first_values(
    layers: Sequence[Layer], parameters: Iterable[Parameter], seed: int
) -> list[tuple[Tensor, np.ndarray]]:
    """The first values of these parameters, which are of these layers.

    They depend on the seed, the layer's name and which of the layers of that name it is: so a layer
    that is renamed to be trained again does not begin where the one began whose place it takes.
    """
    left = {parameter.blob for parameter in parameters}
    values = []
    layers_of_name: Counter[str] = Counter()
    for layer in layers:
        named = (int.from_bytes(layer.name.encode()), layers_of_name[layer.name])
        layers_of_name[layer.name] += 1
        for index, (blob, kind) in enumerate(zip(layer.parameters, layer.fillers, strict=True)):
            if blob in left:
                left.discard(blob)
                draws = filler.Draws(seed, *named, index)
                values.append((blob.data, filler.fill(kind, blob.shape, draws, layer.title)))
    return values


def write_constants(layers: Iterable[Layer], backend: Backend) -> None:
    """Give the constant tops of these layers their values again: their shapes have changed.
    (A tensor without memory is of calls that were dropped.)"""
    for layer in layers:
        for tensor, values in layer.initial:
            if tensor.array is not None and tensor not in [blob.data for blob in layer.parameters]:
                backend.write(tensor, values)


@dataclass(frozen=True)
class Match:
    """What a model file had for the layers of a net.

    loaded: layers of the net all of whose parameters are in it.
    unused: what messages call the layers of the file that no layer of the net takes.
    """

    loaded: list[Layer]
    unused: list[str]


def copy_weights(weights: AnyWeights, layers: Sequence[Layer], backend: Backend) -> Match:
    """Write the blobs of `weights` into the parameters of the layers that have the same names: all
    that fit, or none, with a UserError.

    Layers of one name take those of that name in their order: C++ Caffe gives them all to the
    first, so that a net does not get its own weights back.
    """
    targets = by_name(layer for layer in layers if layer.parameters)
    sources = by_name(layer for layer in weights.layer if layer.blobs)
    copies: list[tuple[Blob, Any]] = []
    for name, group in targets.items():
        given = sources.get(name, [])
        if given and max(len(group), len(given)) > 1:
            log.info(
                'Several layers are named "%s" (%d in the file, %d here): matched in order',
                name,
                len(given),
                len(group),
            )
        for layer, source in zip(group, given, strict=False):
            copies += _copies(source, layer)
        del given[: len(group)]
    for blob, proto in copies:
        backend.write(blob.data, blob_to_array(proto).reshape(blob.shape))
    written = {blob.data.owner for blob, _ in copies}
    loaded = [
        layer
        for layer in layers
        if layer.parameters and written.issuperset(blob.data.owner for blob in layer.parameters)
    ]
    return Match(loaded, [label(source) for group in sources.values() for source in group])


def takes(layer: Layer, index: int, proto: caffe_pb2.BlobProto) -> bool:
    """Whether a blob of a file has the shape of a layer's parameter, or one that it may have."""
    shapes = layer.parameters[index].shape, *layer.saved_shapes
    return any(blob_fits(proto, shape) for shape in shapes)


def _copies(source: Any, layer: Layer) -> Iterator[tuple[Blob, Any]]:
    """The blobs of a layer with those of a file that they are to be read from."""
    blobs = layer.saved_blobs(source.blobs)
    if len(blobs) != len(layer.parameters):
        layer.fail(
            "blobs", f"has {len(layer.parameters)} parameters, the weights file {len(blobs)}"
        )
    for index, (blob, proto) in enumerate(zip(layer.parameters, blobs, strict=True)):
        if not has_values(proto):  # HDF5 files hold a shared parameter once
            continue
        if not takes(layer, index, proto):
            raise UserError(
                f"{layer.title}: parameter {index} has shape {blob.shape}, but the weights file "
                f"has {blob_shape(proto)}; to train this layer from scratch, rename it"
            )
        check_blob(proto)
        yield blob, proto


def to_proto(
    param: caffe_pb2.NetParameter, layers: Sequence[Layer], backend: Backend, *, diff: bool
) -> caffe_pb2.NetParameter:
    """The net of these layers with their weights (diff: and gradients), as a model file has it.

    Images that were cropped have their size where ImageData has the one that it scales them to: so
    who uses the model can scale others to it.
    """
    result = caffe_pb2.NetParameter()
    result.CopyFrom(param)
    for layer, message in zip(layers, result.layer, strict=True):
        message.phase = getattr(caffe_pb2, layer.phase)
        if layer.record_shape and message.transform_param.crop_size:
            size = message.image_data_param
            _, size.new_height, size.new_width = layer.record_shape
        del message.blobs[:]
        for blob in layer.parameters:
            gradient = backend.read(blob.diff) if diff else None
            fill_blob(message.blobs.add(), backend.read(blob.data), gradient)
    return result


def misfits(
    net: caffe_pb2.NetParameter,
    weights: AnyWeights,
    entering: Mapping[str, Shape],
    backend: Backend,
) -> dict[str, str]:
    """By the name of such a layer of the TRAIN phase, what its shapes are here and there.

    entering: the shapes of the blobs that the net's data layers bring; no data are read, and no
    memory is taken. Bad layers raise UserError.
    """
    filtered = filter_layers(net, net_state(net, "TRAIN"))
    probe = caffe_pb2.NetParameter(name=net.name)
    for name, shape in entering.items():
        given = probe.layer.add(name=name, type="Input", top=[name])
        given.input_param.shape.add(dim=shape)
    probe.layer.extend(layer for layer in filtered.layer if layer.bottom)
    parts = assemble(insert_splits(probe), "TRAIN", 0, Context(backend))
    layers = by_name(node.layer for node in parts.nodes if node.layer.parameters)
    mismatches: dict[str, str] = {}
    sources: list[Any] = [layer for layer in weights.layer if layer.blobs]
    for name, group in by_name(sources).items():
        for layer, source in zip(layers.get(name, []), group, strict=False):
            blobs = layer.saved_blobs(source.blobs)
            fit = len(blobs) == len(layer.parameters) and all(
                takes(layer, index, proto) or not has_values(proto)
                for index, proto in enumerate(blobs)
            )
            if not fit:
                there = listed(blob_shape(proto) for proto in source.blobs)
                here = listed(blob.shape for blob in layer.parameters)
                mismatches[name] = f"{here} here, {there} in the file"
    return mismatches
