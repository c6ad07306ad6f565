"""The graph of a net as TensorBoard's graph page shows it: a node for each layer."""

from __future__ import annotations

import re

from tensorboardX.proto.attr_value_pb2 import AttrValue
from tensorboardX.proto.graph_pb2 import GraphDef
from tensorboardX.proto.node_def_pb2 import NodeDef
from tensorboardX.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboardX.proto.versions_pb2 import VersionDef

from ...blob import Blob
from ...layers.base import Layer
from ...net import Net

_NOT_SHOWN = {"name", "type", "bottom", "top", "phase", "include", "exclude", "blobs"}
"""Fields that the graph itself shows, or that only select the layer."""


def graph_of(net: Net) -> bytes:
    """A serialized GraphDef: layers with their settings and the shapes of what they put out.

    Layers are linked as they compute: after one that works in place come those that read what it
    made. The splits that the net inserted are left out. A "/" in a name makes groups, as it does in
    TensorBoard.
    """
    made: dict[str, str] = {}
    """Where each blob comes from at this point: "node", or "node:1" for a second top."""
    names: set[str] = set()
    graph = GraphDef(versions=VersionDef(producer=22))
    for name in net.inputs:
        made[name] = _new_name(name, names)
        graph.node.append(_node(made[name], "Input", [], [net.blobs[name]]))
    for node in net.nodes:
        layer = node.layer
        if layer.type == "Split":
            made |= dict.fromkeys(layer.param.top, made[layer.param.bottom[0]])
            continue
        name = _new_name(layer.name or layer.type, names)
        inputs = [made[bottom] for bottom in layer.param.bottom if bottom in made]
        shown = _node(name, layer.type, inputs, node.top)
        for field, text in _settings(layer).items():
            shown.attr[field].s = text.encode()
        graph.node.append(shown)
        for at, blob in enumerate(node.top):
            made[blob.name] = f"{name}:{at}" if at else name
    content: bytes = graph.SerializeToString()
    return content


def _node(name: str, kind: str, inputs: list[str], tops: list[Blob]) -> NodeDef:
    shapes = [
        TensorShapeProto(dim=[TensorShapeProto.Dim(size=extent) for extent in top.shape])
        for top in tops
    ]
    attr = {"_output_shapes": AttrValue(list=AttrValue.ListValue(shape=shapes))}
    return NodeDef(name=name, op=kind, input=inputs, attr=attr)


def _settings(layer: Layer) -> dict[str, str]:
    """What the prototxt says of a layer, by field, and the shapes of its parameters."""
    settings = {}
    for field, value in layer.param.ListFields():
        if field.name not in _NOT_SHOWN:
            many = isinstance(value, str | int | float) or not hasattr(value, "__len__")
            texts = [value] if many else list(value)
            settings[field.name] = ", ".join(" ".join(str(text).split()) for text in texts)
    if layer.parameters:
        settings |= {"parameters": ", ".join(str(blob.shape) for blob in layer.parameters)}
    return settings


def _new_name(name: str, names: set[str]) -> str:
    """A name as TensorBoard takes it, that no other node has."""
    name = stem = re.sub(r"[^\w./-]", "_", name).strip("/") or "layer"
    number = 1
    while name in names:
        name, number = f"{stem}_{number}", number + 1
    names.add(name)
    return name
