"""Owns the export of a whole net: its inputs, constants and outputs, around the nodes."""

from __future__ import annotations

from typing import Any

from .. import __version__
from ..errors import UserError
from ..net import Net
from .graph import Graph, Missing, require_onnx
from .primitives import TRANSLATORS, translate

OPSET = 17
"""What readers of a model must know of ONNX."""
IR_VERSION = 8
"""The form of files that came with it."""


def to_onnx(net: Net) -> Any:
    """The ModelProto that computes what the net's forward pass does, with its weights.

    net: on the CPU, of the TEST phase and inspectable, so that nothing in it is fused. UserError
    where an output depends on what cannot be exported, which names the layer; where onnx is not
    installed.
    """
    require_onnx()
    from onnx import TensorProto, checker, helper

    graph = Graph()
    for name, blob in net.blobs.items():
        graph.names.setdefault(blob.data.owner, name)
    inputs = []
    for name in net.inputs:
        inputs.append(helper.make_tensor_value_info(graph.name(name), TensorProto.FLOAT,
                                                    net.blobs[name].shape))  # fmt: skip
        graph.write(net.blobs[name].data, name)
    _add_constants(graph, net)
    for call in net.programs[0]:
        try:
            if call.name not in TRANSLATORS:
                raise Missing(
                    f'layer "{call.layer}": ONNX has nothing for what it does ({call.name})'
                )
            translate(graph, call)
        except Missing as missing:
            graph.give_up(call, str(missing))

    if not net.outputs:
        raise UserError(f'the net "{net.name}" has no outputs: there is nothing to export')
    values = {name: _output(graph, net, name) for name in net.outputs}
    graph.keep_needed(list(values.values()))
    # An output that is an input or a constant, or another's value, needs a node of its own.
    made = {value for node in graph.nodes for value in node.output}
    names: dict[str, str] = {}
    for name, value in values.items():
        if value not in made or value in names:
            value = graph.node("Identity", value)
        names[value] = _outside(net, name)
    graph.rename(names)
    outputs = [
        helper.make_tensor_value_info(_outside(net, name), TensorProto.FLOAT, net.blobs[name].shape)
        for name in values
    ]
    made_graph = helper.make_graph(
        graph.nodes, net.name or "net", inputs, outputs, graph.constants()
    )
    model = helper.make_model(
        made_graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
        producer_name="osucaffe", producer_version=__version__,
    )  # fmt: skip
    checker.check_model(model)
    return model


def _add_constants(graph: Graph, net: Net) -> None:
    """Parameters, and what layers write once."""
    for layer in net.layers:
        parameters = [blob.data for blob in layer.parameters]
        for index, tensor in enumerate(parameters):
            values = net.backend.read(tensor)
            graph.write(tensor, graph.constant(values, f"{layer.label}.{index}"))
        for tensor, values in layer.initial:
            if tensor.array is not None and tensor not in parameters:
                graph.write(tensor, graph.constant(values, layer.label))


def _outside(net: Net, output: str) -> str:
    """What to call an output: as it is, but for an input that a layer works upon in place."""
    return f"{output}.out" if output in net.inputs else output


def _output(graph: Graph, net: Net, name: str) -> str:
    try:
        return graph.read(net.blobs[name].data)
    except Missing as missing:
        raise UserError(
            f'output "{name}" cannot be exported: {missing}; give a net for deployment, without '
            "data layers, losses and scores"
        ) from None
