"""What stands for each primitive in ONNX: a function of its name, or none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np

from .. import plugins
from ..backends import primitives as ops
from ..backends.formula import Expression, Name, Number, parse
from ..backends.primitives.recording import Primitive
from ..backends.tensor import Tensor
from .graph import Graph, Missing

Translator = Callable[[Graph, Any], None]
TRANSLATORS: dict[str, Translator] = {}


def translator(function: Translator) -> Translator:
    """Register the decorated function as that of the primitive of its name."""
    TRANSLATORS[function.__name__.rstrip("_")] = function
    return function


def translate(graph: Graph, call: Primitive) -> None:
    """Add the nodes of a call. Missing where there are none. Another package has its translators in
    the module `onnx` beside its primitives."""
    found = plugins.provided(TRANSLATORS, type(call), "onnx")
    if found is None:
        what = f"ONNX has nothing for what it does ({call.name})"
        raise Missing(f'layer "{call.layer}": {what}')
    found(graph, call)


def put(graph: Graph, y: Tensor, operation: str, *inputs: str, **attributes: Any) -> None:
    """Let y be the output of a node with these inputs."""
    graph.write(y, graph.node(operation, *inputs, hint=graph.hint(y), **attributes))


def activated(graph: Graph, value: str, slope: float | None) -> str:
    """The value after a ReLU of this slope (None: there is none)."""
    if slope is None:
        return value
    return graph.node("LeakyRelu", value, alpha=slope) if slope else graph.node("Relu", value)


# -- moves ---------------------------------------------------------------------------------------


@translator
def fill(graph: Graph, a: ops.Fill) -> None:
    graph.write(a.y, graph.constant(np.full(a.y.shape, a.value, np.float32)))


@translator
def arange(graph: Graph, a: ops.Arange) -> None:
    values = np.arange(a.y.count, dtype=np.float32).reshape(a.y.shape)
    graph.write(a.y, graph.constant(values))


@translator
def copy(graph: Graph, a: ops.Copy) -> None:
    graph.write(a.y, graph.read(a.x))


@translator
def concat(graph: Graph, a: ops.Concat) -> None:
    put(graph, a.y, "Concat", *map(graph.read, a.xs), axis=a.axis)


def _slice(graph: Graph, x: str, starts: Sequence[int], ends: Sequence[int], axes: Any) -> str:
    bounds = (graph.constant(np.array(bound, int)) for bound in (starts, ends, axes))
    return graph.node("Slice", x, *bounds)


@translator
def split(graph: Graph, a: ops.Split) -> None:
    known = sum(y.shape[a.axis] for y in a.ys if y is not None)
    start = 0
    for y in a.ys:
        end = start + (a.x.shape[a.axis] - known if y is None else y.shape[a.axis])
        if y is not None:
            graph.write(y, _slice(graph, graph.read(a.x), [start], [end], [a.axis]))
        start = end


@translator
def permute(graph: Graph, a: ops.Permute) -> None:
    seen, _ = a.seen
    value, own = graph.read(a.x), seen == a.x.shape
    value = value if own else graph.reshape(value, seen)
    value = graph.node("Transpose", value, perm=list(a.axes), hint=graph.hint(a.y))
    graph.write(a.y, value if own else graph.reshape(value, a.y.shape))


@translator
def crop(graph: Graph, a: ops.Crop) -> None:
    bounds = zip(a.offsets, a.y.shape, a.x.shape, strict=True)
    cuts = [(start, start + y, axis) for axis, (start, y, x) in enumerate(bounds) if y != x]
    value = graph.read(a.x)
    graph.write(a.y, _slice(graph, value, *zip(*cuts, strict=True)) if cuts else value)


@translator
def gather(graph: Graph, a: ops.Gather) -> None:
    rows = graph.node("Cast", graph.read(a.index), to=7)
    put(graph, a.y, "Gather", graph.read(a.x), rows, axis=0)


# -- element by element --------------------------------------------------------------------------

OPERATIONS = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow",
    "negative": "Neg", "where": "Where", "greater": "Greater", "greater_equal": "GreaterOrEqual",
    "less": "Less", "less_equal": "LessOrEqual", "equal": "Equal", "exp": "Exp", "log": "Log",
    "sqrt": "Sqrt", "abs": "Abs", "tanh": "Tanh", "erf": "Erf", "min": "Min", "max": "Max",
    "sign": "Sign", "floor": "Floor",
}  # fmt: skip


def evaluate(
    graph: Graph, formula: str, operands: Mapping[str, str], constants: Mapping[str, float] | None
) -> dict[str, str]:
    """The values of all that a formula assigns. operands: the values of the names that it reads."""
    values = dict(operands)
    for statement in parse(formula).bind(list(values), (), constants).statements:
        values[statement.target] = _value(graph, statement.value, values)
    return values


def _value(graph: Graph, expression: Expression, values: Mapping[str, str]) -> str:
    match expression:
        case Number(number):
            return graph.constant(float(number))
        case Name(name):
            return values[name]
    inputs = [_value(graph, argument, values) for argument in expression.arguments]
    match expression.function:
        case "log1p":
            return graph.node("Log", graph.node("Add", inputs[0], graph.constant(1.0)))
        case "expm1":
            return graph.node("Sub", graph.node("Exp", inputs[0]), graph.constant(1.0))
        case "not_equal":
            return graph.node("Not", graph.node("Equal", *inputs))
    return graph.node(OPERATIONS[expression.function], *inputs)


def _formula(graph: Graph, a: ops.Elementwise | ops.Reduce) -> dict[str, str]:
    operands = dict(zip(ascii_lowercase, map(graph.read, a.inputs), strict=False))
    return evaluate(graph, a.formula, operands, a.constants)


@translator
def broadcast(graph: Graph, a: ops.Elementwise) -> None:
    values, made = _formula(graph, a), np.broadcast_shapes(*(x.shape for x in a.inputs))
    for tensor, name in zip(a.outputs, "yz", strict=False):
        value = values[name]
        if made != tensor.shape:  # repeated, as in Tile
            pairs = zip(made, tensor.shape, strict=True)
            repeats = graph.constant(np.array([1 if x == y else y for x, y in pairs]))
            value = graph.node("Expand", value, repeats)
        graph.write(tensor, value)


TRANSLATORS["elementwise"] = broadcast


@translator
def reduce(graph: Graph, a: ops.Reduce) -> None:
    value = _formula(graph, a)["y"]
    if a.axes:
        value = graph.node("ReduceSum", value, graph.constant(np.array(a.axes, int)), keepdims=1)
    graph.write(a.y, graph.reshape(value, a.y.shape))


@translator
def sum_(graph: Graph, a: ops.Sum) -> None:
    terms = list(map(graph.read, a.xs))
    for i, factor in enumerate(a.coefficients or ()):
        if factor != 1:
            terms[i] = graph.node("Mul", terms[i], graph.constant(float(factor)))
    put(graph, a.y, "Sum", *terms)


@translator
def relu(graph: Graph, a: ops.Relu) -> None:
    graph.write(a.y, activated(graph, graph.read(a.x), a.slope))


# -- windows and products ------------------------------------------------------------------------


def _operands(graph: Graph, *tensors: Tensor | None) -> list[str]:
    return [graph.read(tensor) for tensor in tensors if tensor is not None]


def _convolution(a: ops.Convolution | ops.ConvolutionBackwardData) -> dict[str, Any]:
    return {
        "kernel_shape": list(a.w.shape[2:]), "strides": list(a.stride), "pads": [*a.pad, *a.pad],
        "dilations": list(a.dilation), "group": a.group,
    }  # fmt: skip


@translator
def convolution(graph: Graph, a: ops.Convolution) -> None:
    inputs = _operands(graph, a.x, a.w, a.b)
    value = graph.node("Conv", *inputs, hint=graph.hint(a.y), **_convolution(a))
    graph.write(a.y, activated(graph, value, a.relu))


@translator
def convolution_backward_data(graph: Graph, a: ops.ConvolutionBackwardData) -> None:
    """Deconvolution."""
    put(graph, a.dx, "ConvTranspose", *_operands(graph, a.dy, a.w), **_convolution(a))


@translator
def inner_product(graph: Graph, a: ops.InnerProduct) -> None:
    rows = (math.prod(a.x.shape[: a.axis]), math.prod(a.x.shape[a.axis :]))
    value = graph.read(a.x)
    value = value if a.x.shape == rows else graph.reshape(value, rows)
    inputs = [value, *_operands(graph, a.w, a.b)]
    value = graph.node("Gemm", *inputs, hint=graph.hint(a.y), transB=int(not a.transpose))
    outputs = (rows[0], a.y.count // rows[0])
    value = value if a.y.shape == outputs else graph.reshape(value, a.y.shape)
    graph.write(a.y, activated(graph, value, a.relu))


def _pooling(a: ops.MaxPooling | ops.AveragePooling) -> dict[str, Any]:
    """Attributes of a pooling with y's extents: its padding ends where the last window does."""
    spans = zip(a.x.shape[2:], a.y.shape[2:], a.kernel, a.stride, a.pad, strict=True)
    ends = [max((out - 1) * s + k - extent - p, 0) for extent, out, k, s, p in spans]
    return {"kernel_shape": list(a.kernel), "strides": list(a.stride), "pads": [*a.pad, *ends]}


@translator
def max_pooling(graph: Graph, a: ops.MaxPooling) -> None:
    inputs, hint = [graph.read(a.x)], graph.hint(a.y)
    value, places = graph.nodes_of("MaxPool", inputs, 2, hint=hint, **_pooling(a))
    graph.write(a.y, value)
    if a.index is not None:
        size = graph.constant(math.prod(a.x.shape[2:]))
        graph.write(a.index, graph.node("Cast", graph.node("Mod", places, size), to=1))


@translator
def average_pooling(graph: Graph, a: ops.AveragePooling) -> None:
    value = graph.node(
        "AveragePool", graph.read(a.x), hint=graph.hint(a.y), count_include_pad=1, **_pooling(a)
    )
    share: Any = 1.0  # of a window that Caffe counts: up to the image's far padding
    spans = zip(a.x.shape[2:], a.y.shape[2:], a.kernel, a.stride, a.pad, strict=True)
    for extent, out, k, s, p in spans:
        begin = np.arange(out) * s - p
        share = np.multiply.outer(share, (np.minimum(begin + k, extent + p) - begin) / k)
    if (share != 1).any():
        value = graph.node("Div", value, graph.constant(share))
    graph.write(a.y, value)


# -- normalization and the rest ------------------------------------------------------------------


@translator
def lrn(graph: Graph, a: ops.Lrn) -> None:
    value = graph.read(a.x)
    if not a.within_channel:
        put(graph, a.y, "LRN", value, size=a.size, alpha=a.alpha, beta=a.beta, bias=a.k)
        return
    mean = graph.node(
        "AveragePool", graph.node("Mul", value, value), kernel_shape=[a.size, a.size],
        pads=[(a.size - 1) // 2] * 4, count_include_pad=1,
    )  # fmt: skip
    formula = "y = a * (1 + alpha * b) ** power"
    operands, constants = {"a": value, "b": mean}, {"alpha": a.alpha, "power": -a.beta}
    graph.write(a.y, evaluate(graph, formula, operands, constants)["y"])


@translator
def batch_norm_statistics(graph: Graph, a: ops.BatchNormStatistics) -> None:
    value, axes = graph.read(a.x), [axis for axis in range(len(a.x.shape)) if axis != 1]
    mean = graph.node("ReduceMean", value, axes=axes)
    centred = graph.node("Sub", value, mean)
    variance = graph.node("ReduceMean", graph.node("Mul", centred, centred), axes=axes)
    inv_std = evaluate(graph, "y = 1 / sqrt(a + eps)", {"a": variance}, {"eps": a.eps})["y"]
    for tensor, statistic in ((a.mean, mean), (a.inv_std, inv_std)):
        graph.write(tensor, graph.reshape(statistic, tensor.shape))


@translator
def batch_norm(graph: Graph, a: ops.BatchNorm) -> None:
    value = graph.read(a.x)
    row = (1, a.x.shape[1], *(1,) * (len(a.x.shape) - 2))
    factors = _operands(graph, a.inv_std, a.scale)
    factor = graph.node("Mul", *factors) if len(factors) == 2 else "".join(factors)
    pairs = (
        ("Sub", a.mean and graph.read(a.mean)), ("Mul", factor),
        ("Add", a.bias and graph.read(a.bias)),
    )  # fmt: skip
    for operation, channels in pairs:
        if channels:
            channels = graph.reshape(channels, row)
            value = graph.node(operation, value, channels, hint=graph.hint(a.y))
    if a.addend is not None:
        value = graph.node("Add", value, graph.read(a.addend))
    graph.write(a.y, activated(graph, value, 0.0 if a.relu else None))


@translator
def softmax(graph: Graph, a: ops.Softmax) -> None:
    put(graph, a.y, "Softmax", graph.read(a.x), axis=a.axis)


@translator
def top_k(graph: Graph, a: ops.TopK) -> None:
    count = next(tensor.shape[a.axis] for tensor in (a.index, a.value) if tensor is not None)
    inputs = [graph.read(a.x), graph.constant(np.array([count]))]
    largest, indices = graph.nodes_of("TopK", inputs, 2, axis=a.axis)
    if a.value is not None:
        graph.write(a.value, largest)
    if a.index is not None:
        graph.write(a.index, graph.node("Cast", indices, to=1))
