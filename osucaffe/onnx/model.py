"""The export of a whole net: its inputs, constants and outputs, around the nodes."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import UserError
from ..net import Net
from .graph import Graph, Missing, require_onnx
from .primitives import translate

OPSET = 17
"""What readers of a model must know of ONNX."""
IR_VERSION = 8
"""The form of files that came with it."""
_BATCHES = 2, 3


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
        producer_name="osucaffe", producer_version=sys.modules["osucaffe"].__version__,
    )  # fmt: skip
    checker.check_model(model)
    return model


def for_any_batch(net: Net) -> Any | None:
    """The same for batches of any size: "batch" in the shapes of inputs and outputs. None where a
    node depends on the size, or the inputs have several. The net is reshaped on the way.

    Exported for two sizes, the nodes must be the same, and the constants but for shapes given to
    Reshape in which one extent depends on the size: it is inferred there.
    """
    from onnx import checker, numpy_helper

    if len({net.blobs[name].shape[:1] for name in net.inputs}) != 1:
        return None
    try:
        model, other = (_for_batch(net, size) for size in _BATCHES)
    except UserError:
        return None
    graphs = model.graph, other.graph
    shapes = {node.input[1] for node in model.graph.node if node.op_type == "Reshape"}
    for pair in zip(*(graph.initializer for graph in graphs), strict=False):
        if pair[0].name in shapes and pair[0] != pair[1]:
            shape, changed = (numpy_helper.to_array(each).copy() for each in pair)
            if shape.shape == changed.shape and (shape != changed).sum() == 1:
                shape[shape != changed] = -1
                for each in pair:
                    each.CopyFrom(numpy_helper.from_array(shape, pair[0].name))
    for pair in zip(*((*graph.input, *graph.output) for graph in graphs), strict=True):
        dims = (value.type.tensor_type.shape.dim for value in pair)
        for extent, changed in zip(*dims, strict=False):
            if (extent.dim_value, changed.dim_value) == _BATCHES:
                extent.dim_param = changed.dim_param = "batch"
    if model != other:
        return None
    checker.check_model(model)
    return model


def _for_batch(net: Net, size: int) -> Any:
    net.reshape({name: (size, *net.blobs[name].shape[1:]) for name in net.inputs})
    return to_onnx(net)


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
