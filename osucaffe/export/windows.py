"""Owns what stands in ONNX for the primitives of windows, products and normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backends.tensor import Tensor
from .formulas import evaluate
from .graph import Graph
from .primitives import activated, put, translator


def _operands(graph: Graph, *tensors: Tensor | None) -> list[str]:
    return [graph.read(tensor) for tensor in tensors if tensor is not None]


@translator
def convolution(
    graph: Graph,
    x: Tensor,
    w: Tensor,
    y: Tensor,
    b: Tensor | None = None,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
    relu: float | None = None,
) -> None:
    value = graph.node(
        "Conv", *_operands(graph, x, w, b), hint=graph.hint(y), kernel_shape=list(w.shape[2:]),
        strides=list(stride), pads=[*pad, *pad], dilations=list(dilation), group=group,
    )  # fmt: skip
    graph.write(y, activated(graph, value, relu))


@translator
def convolution_backward_data(
    graph: Graph,
    dy: Tensor,
    w: Tensor,
    dx: Tensor,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
) -> None:
    """Deconvolution."""
    put(
        graph, dx, "ConvTranspose", *_operands(graph, dy, w), kernel_shape=list(w.shape[2:]),
        strides=list(stride), pads=[*pad, *pad], dilations=list(dilation), group=group,
    )  # fmt: skip


@translator
def inner_product(
    graph: Graph,
    x: Tensor,
    w: Tensor,
    y: Tensor,
    b: Tensor | None = None,
    *,
    axis: int,
    transpose: bool,
    relu: float | None = None,
) -> None:
    rows = (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
    value = graph.read(x)
    value = value if x.shape == rows else graph.reshape(value, rows)
    value = graph.node(
        "Gemm", value, *_operands(graph, w, b), hint=graph.hint(y), transB=int(not transpose)
    )
    outputs = (rows[0], y.count // rows[0])
    value = value if y.shape == outputs else graph.reshape(value, y.shape)
    graph.write(y, activated(graph, value, relu))


def _window(
    x: Tensor, y: Tensor, kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]
) -> dict[str, Any]:
    """Attributes of a pooling with y's extents: its padding ends where the last window does."""
    spans = zip(x.shape[2:], y.shape[2:], kernel, stride, pad, strict=True)
    ends = [max((out - 1) * s + k - extent - p, 0) for extent, out, k, s, p in spans]
    return {"kernel_shape": list(kernel), "strides": list(stride), "pads": [*pad, *ends]}


@translator
def max_pooling(
    graph: Graph, x: Tensor, y: Tensor, index: Tensor | None = None, **window: Sequence[int]
) -> None:
    attributes, inputs = _window(x, y, **window), [graph.read(x)]
    value, places = graph.nodes_of("MaxPool", inputs, 2, hint=graph.hint(y), **attributes)
    graph.write(y, value)
    if index is not None:
        size = graph.constant(math.prod(x.shape[2:]))
        graph.write(index, graph.node("Cast", graph.node("Mod", places, size), to=1))


@translator
def average_pooling(graph: Graph, x: Tensor, y: Tensor, **window: Sequence[int]) -> None:
    value = graph.node(
        "AveragePool", graph.read(x), hint=graph.hint(y), count_include_pad=1,
        **_window(x, y, **window),
    )  # fmt: skip
    share: Any = 1.0  # of a window that Caffe counts: up to the image's far padding
    for extent, out, k, s, p in zip(x.shape[2:], y.shape[2:], *window.values(), strict=True):
        begin = np.arange(out) * s - p
        share = np.multiply.outer(share, (np.minimum(begin + k, extent + p) - begin) / k)
    if (share != 1).any():
        value = graph.node("Div", value, graph.constant(share))
    graph.write(y, value)


# -- normalization and the rest ------------------------------------------------------------------


@translator
def unpooling(graph: Graph, x: Tensor, index: Tensor, y: Tensor) -> None:
    small, large = ((*each.shape[:2], math.prod(each.shape[2:])) for each in (x, y))
    zeros = graph.constant(np.zeros(large, np.float32))
    places = graph.node("Cast", graph.reshape(graph.read(index), small), to=7)
    values = graph.reshape(graph.read(x), small)
    value = graph.node("ScatterElements", zeros, places, values, axis=2)
    graph.write(y, graph.reshape(value, y.shape))


@translator
def interpolation(graph: Graph, x: Tensor, y: Tensor) -> None:
    sizes = graph.constant(np.array(y.shape))
    put(
        graph, y, "Resize", graph.read(x), "", "", sizes, mode="linear",
        coordinate_transformation_mode="align_corners",
    )  # fmt: skip


@translator
def lrn(
    graph: Graph,
    x: Tensor,
    y: Tensor,
    note: Tensor,
    *,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    within_channel: bool,
) -> None:
    value = graph.read(x)
    if not within_channel:
        put(graph, y, "LRN", value, size=size, alpha=alpha, beta=beta, bias=k)
        return
    mean = graph.node(
        "AveragePool", graph.node("Mul", value, value), kernel_shape=[size, size],
        pads=[(size - 1) // 2] * 4, count_include_pad=1,
    )  # fmt: skip
    formula = "y = a * (1 + alpha * b) ** power"
    operands, constants = {"a": value, "b": mean}, {"alpha": alpha, "power": -beta}
    graph.write(y, evaluate(graph, formula, operands, constants)["y"])


@translator
def batch_norm_statistics(
    graph: Graph, x: Tensor, mean: Tensor, rate: Tensor, *, eps: float, **past: Any
) -> None:
    value, axes = graph.read(x), [axis for axis in range(len(x.shape)) if axis != 1]
    middle = graph.node("ReduceMean", value, axes=axes)
    gap = graph.node("Sub", value, middle)
    spread = graph.node("ReduceMean", graph.node("Mul", gap, gap), axes=axes)
    found = evaluate(graph, "y = 1 / sqrt(a + eps)", {"a": spread}, {"eps": eps})["y"]
    for tensor, each in ((mean, middle), (rate, found)):
        graph.write(tensor, graph.reshape(each, tensor.shape))


@translator
def batch_norm(
    graph: Graph,
    x: Tensor,
    y: Tensor,
    mean: Tensor | None = None,
    rate: Tensor | None = None,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    addend: Tensor | None = None,
    *,
    relu: bool = False,
) -> None:
    value = graph.read(x)
    row = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    factors = [graph.read(each) for each in (rate, scale) if each is not None]
    factor = graph.node("Mul", *factors) if len(factors) == 2 else "".join(factors)
    pairs = (
        ("Sub", mean and graph.read(mean)), ("Mul", factor), ("Add", bias and graph.read(bias)),
    )  # fmt: skip
    for operation, channels in pairs:
        if channels:
            channels = graph.reshape(channels, row)
            value = graph.node(operation, value, channels, hint=graph.hint(y))
    if addend is not None:
        value = graph.node("Add", value, graph.read(addend))
    graph.write(y, activated(graph, value, 0.0 if relu else None))


@translator
def softmax(graph: Graph, x: Tensor, y: Tensor, *, axis: int) -> None:
    put(graph, y, "Softmax", graph.read(x), axis=axis)


@translator
def top_k(
    graph: Graph, x: Tensor, index: Tensor | None = None, value: Tensor | None = None, *, axis: int
) -> None:
    count = next(tensor.shape[axis] for tensor in (index, value) if tensor is not None)
    found, places = graph.nodes_of(
        "TopK", [graph.read(x), graph.constant(np.array([count]))], 2, axis=axis
    )
    if value is not None:
        graph.write(value, found)
    if index is not None:
        graph.write(index, graph.node("Cast", places, to=1))
