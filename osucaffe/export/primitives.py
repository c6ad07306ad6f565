"""Owns what stands for each primitive in ONNX: a function of its name, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_lowercase
from typing import Any

import numpy as np

from ..backends.tensor import Call, Tensor
from .formulas import evaluate
from .graph import Graph

Translator = Callable[..., None]
TRANSLATORS: dict[str, Translator] = {}


def translator(function: Translator) -> Translator:
    """Register the decorated function: `name(graph, **tensors, **settings)` as primitives are."""
    TRANSLATORS[function.__name__.rstrip("_")] = function
    return function


def translate(graph: Graph, call: Call) -> None:
    """Add the nodes of a call. KeyError where there is no translator; Missing passes through."""
    TRANSLATORS[call.name](graph, **call.reads | call.writes | call.settings)


def put(graph: Graph, y: Tensor, operation: str, *inputs: str, **attributes: Any) -> None:
    """Let y be what a node makes of the inputs."""
    graph.write(y, graph.node(operation, *inputs, hint=graph.hint(y), **attributes))


def activated(graph: Graph, value: str, slope: float | None) -> str:
    """The value behind a ReLU of this slope (None: there is none)."""
    if slope is None:
        return value
    return graph.node("LeakyRelu", value, alpha=slope) if slope else graph.node("Relu", value)


# -- moves ---------------------------------------------------------------------------------------


@translator
def fill(graph: Graph, y: Tensor, *, value: float) -> None:
    graph.write(y, graph.constant(np.full(y.shape, value, np.float32)))


@translator
def positions(graph: Graph, y: Tensor) -> None:
    graph.write(y, graph.constant(np.arange(y.count, dtype=np.float32).reshape(y.shape)))


@translator
def copy(graph: Graph, x: Tensor, y: Tensor) -> None:
    graph.write(y, graph.read(x))


@translator
def concat(graph: Graph, xs: list[Tensor], y: Tensor, *, axis: int) -> None:
    put(graph, y, "Concat", *map(graph.read, xs), axis=axis)


def _slice(graph: Graph, x: str, starts: Sequence[int], ends: Sequence[int], axes: Any) -> str:
    bounds = (graph.constant(np.array(each, int)) for each in (starts, ends, axes))
    return graph.node("Slice", x, *bounds)


@translator
def split(graph: Graph, x: Tensor, ys: list[Tensor | None], *, axis: int) -> None:
    known = sum(y.shape[axis] for y in ys if y is not None)
    start = 0
    for y in ys:
        end = start + (x.shape[axis] - known if y is None else y.shape[axis])
        if y is not None:
            graph.write(y, _slice(graph, graph.read(x), [start], [end], [axis]))
        start = end


@translator
def permute(graph: Graph, x: Tensor, y: Tensor, *, axes: Sequence[int]) -> None:
    put(graph, y, "Transpose", graph.read(x), perm=list(axes))


@translator
def crop(graph: Graph, x: Tensor, y: Tensor, *, offsets: Sequence[int]) -> None:
    ends = [start + extent for start, extent in zip(offsets, y.shape, strict=True)]
    graph.write(y, _slice(graph, graph.read(x), offsets, ends, range(len(ends))))


@translator
def gather(graph: Graph, x: Tensor, index: Tensor, y: Tensor) -> None:
    rows = graph.node("Cast", graph.read(index), to=7)
    put(graph, y, "Gather", graph.read(x), rows, axis=0)


# -- element by element --------------------------------------------------------------------------


def _formula(
    graph: Graph, inputs: Sequence[Tensor], formula: str, constants: dict[str, float] | None
) -> dict[str, str]:
    operands = dict(zip(ascii_lowercase, map(graph.read, inputs), strict=False))
    return evaluate(graph, formula, operands, constants)


@translator
def broadcast(
    graph: Graph,
    inputs: list[Tensor],
    outputs: list[Tensor],
    *,
    formula: str,
    constants: dict[str, float] | None = None,
) -> None:
    found = _formula(graph, inputs, formula, constants)
    for tensor, name in zip(outputs, "yz", strict=False):
        value = found[name]
        if all(each.shape != tensor.shape for each in inputs):  # repeated, as in Tile
            value = graph.node("Expand", value, graph.constant(np.array(tensor.shape, int)))
        graph.write(tensor, value)


TRANSLATORS["elementwise"] = broadcast


@translator
def reduce(
    graph: Graph,
    inputs: list[Tensor],
    y: Tensor,
    *,
    formula: str,
    axes: Sequence[int],
    constants: dict[str, float] | None = None,
) -> None:
    value = _formula(graph, inputs, formula, constants)["y"]
    if axes:
        value = graph.node("ReduceSum", value, graph.constant(np.array(axes, int)), keepdims=1)
    graph.write(y, graph.reshape(value, y.shape))


@translator
def sum_(
    graph: Graph, xs: list[Tensor], y: Tensor, *, coefficients: Sequence[float] | None = None
) -> None:
    terms = list(map(graph.read, xs))
    for i, factor in enumerate(coefficients or ()):
        if factor != 1:
            terms[i] = graph.node("Mul", terms[i], graph.constant(float(factor)))
    put(graph, y, "Sum", *terms)


@translator
def relu(graph: Graph, x: Tensor, y: Tensor, *, slope: float) -> None:
    graph.write(y, activated(graph, graph.read(x), slope))
