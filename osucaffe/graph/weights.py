"""Owns the values of a net's parameters: the first ones, and those to and from model files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import filler
from ..arena import Parameter
from ..errors import UserError
from ..layer import Layer
from ..proto import blob_fits, blob_shape, blob_to_array, caffe_pb2, fill_blob, has_values

log = logging.getLogger("osucaffe")


def fill_parameters(
    layers: Sequence[Layer], own: Iterable[Parameter], seed: int, backend: Any
) -> None:
    """Give parameters (`own`: not those of another net), and constant tops, their first values."""
    generator = np.random.Generator(np.random.PCG64(seed))
    waiting = {id(parameter.blob) for parameter in own}
    for layer in layers:
        for blob, kind in zip(layer.parameters, layer.fillers, strict=True):
            if id(blob) in waiting:
                waiting.discard(id(blob))
                where = f'layer "{layer.name}" ({layer.type})'
                backend.write(blob.data, filler.fill(kind, blob.shape, generator, where))
        for tensor, values in layer.initial:
            if tensor.array is not None:  # else it is a parameter of another net
                backend.write(tensor, values)


def copy_weights(weights: caffe_pb2.NetParameter, layers: Sequence[Layer], backend: Any) -> None:
    """Write the blobs of `weights` into the parameters of the layers that have the same names."""
    targets = {layer.name: layer for layer in layers}
    for source in weights.layer:
        layer = targets.get(source.name)
        if layer is None:
            if source.blobs:
                log.info("Ignoring source layer %s", source.name)
            continue
        if not source.blobs:
            continue
        if len(source.blobs) != len(layer.parameters):
            layer.fail(
                "blobs",
                f"has {len(layer.parameters)} parameters, the weights file {len(source.blobs)}",
            )
        for index, (blob, proto) in enumerate(zip(layer.parameters, source.blobs, strict=True)):
            if not has_values(proto):  # HDF5 files hold a shared parameter once
                continue
            if not blob_fits(proto, blob.shape):
                raise UserError(
                    f'layer "{layer.name}" ({layer.type}): parameter {index} has shape '
                    f"{blob.shape}, but the weights file has {blob_shape(proto)}; to learn this "
                    f"layer afresh, rename it"
                )
            values = blob_to_array(proto)
            backend.write(blob.data, values.reshape(blob.shape))


def to_proto(
    param: caffe_pb2.NetParameter, layers: Sequence[Layer], backend: Any, *, diff: bool
) -> caffe_pb2.NetParameter:
    """The net of these layers with their weights (diff: and gradients), as a model file has it."""
    result = caffe_pb2.NetParameter()
    result.CopyFrom(param)
    for layer, each in zip(layers, result.layer, strict=True):
        each.phase = getattr(caffe_pb2, layer.phase)
        del each.blobs[:]
        for blob in layer.parameters:
            gradient = backend.read(blob.diff) if diff else None
            fill_blob(each.blobs.add(), backend.read(blob.data), gradient)
    return result
