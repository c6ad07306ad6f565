"""ONNX nodes for the primitives that put pixels where they were, or between others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...onnx.graph import Graph
from ...onnx.primitives import put, translator
from . import primitives as ops


def shape_of(graph: Graph, x: str, axes: int, rest: Sequence[int]) -> str:
    """A shape of x's first extents, whatever they will be, and others."""
    first = graph.node("Shape", x, start=0, end=axes)
    return graph.node("Concat", first, graph.constant(np.array(rest)), axis=0)


@translator
def unpooling(graph: Graph, a: ops.Unpooling) -> None:
    small = (*a.x.shape[:2], math.prod(a.x.shape[2:]))
    places = graph.node("Cast", graph.reshape(graph.read(a.index), small), to=7)
    values = graph.reshape(graph.read(a.x), small)
    zeros = graph.constant(np.zeros((1, 1, math.prod(a.y.shape[2:])), np.float32))
    zeros = graph.node("Expand", zeros, shape_of(graph, values, 2, [1]))
    value = graph.node("ScatterElements", zeros, places, values, axis=2)
    graph.write(a.y, graph.reshape(value, a.y.shape))


@translator
def resize_bilinear(graph: Graph, a: ops.ResizeBilinear) -> None:
    value = graph.read(a.x)
    shape = shape_of(graph, value, 1, a.y.shape[1:])
    put(
        graph, a.y, "Resize", value, "", "", shape, mode="linear",
        coordinate_transformation_mode="align_corners",
    )  # fmt: skip
