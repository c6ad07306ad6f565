"""Owns the search for layers whose weights have other shapes in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..backends.backend import Backend
from ..backends.tensor import Shape
from ..data.config import DataConfig
from ..errors import listed
from ..proto import AnyWeights, blob_shape, caffe_pb2, has_values
from .assembly import assemble
from .naming import by_name
from .prototxt.filter import filter_layers, net_state
from .prototxt.splits import insert_splits
from .weights import takes


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
    parts = assemble(insert_splits(probe), "TRAIN", 0, backend, DataConfig(), inspectable=False)
    layers = by_name(node.layer for node in parts.nodes if node.layer.parameters)
    found: dict[str, str] = {}
    sources: list[Any] = [layer for layer in weights.layer if layer.blobs]
    for name, group in by_name(sources).items():
        for layer, source in zip(layers.get(name, []), group, strict=False):
            fit = len(source.blobs) == len(layer.parameters) and all(
                takes(layer, index, proto) or not has_values(proto)
                for index, proto in enumerate(source.blobs)
            )
            if not fit:
                there = listed(blob_shape(proto) for proto in source.blobs)
                here = listed(blob.shape for blob in layer.parameters)
                found[name] = f"{here} here, {there} in the file"
    return found
