"""Owns what cuDNN is asked for: convolutions, with what is fused into them, and their graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..tensor import Shape
from .layout import ITEM_BYTES


class Operand(NamedTuple):
    """A tensor as cuDNN sees it: (N, C, *extents), strides in elements, element type."""

    shape: Shape
    strides: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """From the first element to behind the last."""
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return (last + 1) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Convolution:
    """What determines a plan.

    operation: "forward" (y from x, w and, where there is one, b), "data" (x's gradient from y's
    and w) or "filter" (w's gradient from x and y's).
    precision: one of backend.PRECISIONS. bias: b's type. relu: the slope of a fused ReLU, or of
    one whose backward pass is fused into "data" (its output is the operand "mask", which lies as
    x does).
    """

    operation: str
    precision: str
    x: Operand
    w: Operand
    y: Operand
    stride: Shape
    pad: Shape
    dilation: Shape
    bias: str | None = None
    relu: float | None = None

    @property
    def work(self) -> int:
        """Multiplications."""
        return math.prod(self.y.shape) * math.prod(self.w.shape[1:])

    @property
    def operands(self) -> dict[str, Operand]:
        """The operands by name, the one that is written last."""
        both = {
            "forward": ("x", "w", "y"),
            "data": ("y", "w", "x"),
            "filter": ("x", "y", "w"),
        }[self.operation]
        result = {name: getattr(self, name) for name in both}
        written = result.popitem()
        if self.bias:
            rest = len(self.y.shape) - 2
            shape = (1, self.y.shape[1], *[1] * rest)
            strides = (self.y.shape[1], 1, *[self.y.shape[1]] * rest)
            result["b"] = Operand(shape, strides, self.bias)
        if self.operation == "data" and self.relu is not None:
            result["mask"] = self.x
        return {**result, written[0]: written[1]}


UIDS = {"x": 1, "w": 2, "y": 3, "b": 4, "mask": 5}


def graph_of(library: Any, handle: int, convolution: Convolution) -> Any:
    """Its graph for the library, of which nothing is built yet."""
    kinds = library.data_type
    types = {"float32": kinds.FLOAT, "bfloat16": kinds.BFLOAT16, "float16": kinds.HALF}
    graph = library.pygraph(
        handle=handle,
        io_data_type=types[convolution.x.dtype],
        intermediate_data_type=kinds.FLOAT,
        compute_data_type=kinds.FLOAT,
    )
    *read, (written, target) = convolution.operands.items()
    given = {
        name: graph.tensor(
            dim=list(operand.shape), stride=list(operand.strides),
            data_type=types[operand.dtype], name=name,
        ).set_uid(UIDS[name])
        for name, operand in read
    }  # fmt: skip
    window: dict[str, Any] = {
        "padding": list(convolution.pad),
        "stride": list(convolution.stride),
        "dilation": list(convolution.dilation),
    }
    slope = convolution.relu
    if convolution.operation == "forward":
        result = graph.conv_fprop(image=given["x"], weight=given["w"], **window)
        if "b" in given:
            result = graph.bias(input=result, bias=given["b"])
        if slope is not None:
            result = graph.relu(result, **({"negative_slope": slope} if slope else {}))
    elif convolution.operation == "data":
        result = graph.conv_dgrad(loss=given["y"], filter=given["w"], **window)
        if "mask" in given:
            result.set_dim(list(target.shape)).set_stride(list(target.strides))
            result = graph.relu_backward(
                loss=result, input=given["mask"], **({"negative_slope": slope} if slope else {})
            )
    else:
        result = graph.conv_wgrad(image=given["x"], loss=given["y"], **window)
    result.set_output(True).set_data_type(types[target.dtype]).set_uid(UIDS[written])
    result.set_dim(list(target.shape)).set_stride(list(target.strides))
    return graph
