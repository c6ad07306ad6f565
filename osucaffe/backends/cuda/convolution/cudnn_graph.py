"""Owns what cuDNN is asked for: convolutions, with what is fused into them, and their graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...tensor import Shape
from ..layout import ITEM_BYTES, channels_last
from ..libraries.cudnn import Descriptor, Place, build
from ..libraries.cudnn_enums import (
    Attribute,
    ConvolutionMode,
    DataType,
    DescriptorType,
    Double,
    PointwiseMode,
)
from ..libraries.cudnn_plans import operation_graph
from .problem import Problem

UIDS = {"x": 1, "w": 2, "y": 3, "b": 4, "mask": 5}
"""cuDNN's unique ids of the operands."""
FIRST_VIRTUAL = 10
"""That of the first tensor inside a graph, which needs no memory."""
DATA_TYPES = {
    "float32": DataType.FLOAT,
    "bfloat16": DataType.BFLOAT16,
    "float16": DataType.HALF,
}
ALIGNMENT = 16
"""Bytes: all operands begin at multiples of this."""


class Operand(NamedTuple):
    """A tensor as cuDNN sees it: (N, C, *extents), strides in elements, element type."""

    shape: Shape
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, shape: Shape, dtype: str) -> Operand:
        """A tensor that lies channels last; (N, C, L) becomes (N, C, 1, L)."""
        if len(shape) == 3:
            shape = (*shape[:2], 1, shape[2])
        return cls(shape, channels_last(shape), dtype)

    @property
    def nbytes(self) -> int:
        """From the first element to behind the last."""
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return (last + 1) * ITEM_BYTES[self.dtype]

    def part(self, axis: int, count: int) -> Operand:
        """A slice of an axis, of one of `count` equal ones: a view."""
        shape = list(self.shape)
        shape[axis] //= count
        return self._replace(shape=tuple(shape))

    @property
    def alone(self) -> Operand:
        """As if nothing lay between its channels."""
        return self._replace(strides=channels_last(self.shape))


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

    @classmethod
    def of(cls, problem: Problem, operation: str, precision: str, dtype: str) -> Convolution:
        """That of tensors that lie channels last. dtype: of their elements."""
        stride, pad, dilation = problem.window
        if len(stride) == 1:
            stride, pad, dilation = (1, *stride), (0, *pad), (1, *dilation)
        x, w, y = (Operand.of(shape, dtype) for shape in (problem.x, problem.w, problem.y))
        return cls(operation, precision, x, w, y, stride, pad, dilation)

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

    def graph(self, place: Place) -> Descriptor:
        """Its operations, as cuDNN wants them. CudnnError where it does not know such a graph."""
        return operation_graph(place, _Graph(self).operations)


class _Graph:
    """The operations of a convolution, one behind another, and the tensors between them."""

    def __init__(self, convolution: Convolution) -> None:
        self._convolution = convolution
        self._tensors = {
            name: _tensor(UIDS[name], operand) for name, operand in convolution.operands.items()
        }
        *_, self._written = convolution.operands
        self.operations: list[Descriptor] = []
        slope = convolution.relu
        if convolution.operation == "forward":
            behind = [PointwiseMode.ADD] * bool(convolution.bias)
            behind += [PointwiseMode.RELU_FWD] * (slope is not None)
        else:
            behind = [PointwiseMode.RELU_BWD] * (slope is not None)
        self._convolve(self._next(last=not behind))
        for mode in behind:
            self._pointwise(mode, self._next(last=mode is behind[-1]))

    def _next(self, *, last: bool) -> Descriptor:
        """What the next operation writes: the result, or a tensor that never is in memory."""
        if last:
            return self._tensors[self._written]
        operand = self._convolution.operands[self._written]._replace(dtype="float32")
        return _tensor(FIRST_VIRTUAL + len(self.operations), operand, virtual=True)

    def _convolve(self, target: Descriptor) -> None:
        a, found = Attribute, self._convolution
        window = build(
            DescriptorType.CONVOLUTION,
            {
                a.CONVOLUTION_COMP_TYPE: DataType.FLOAT,
                a.CONVOLUTION_CONV_MODE: ConvolutionMode.CROSS_CORRELATION,
                a.CONVOLUTION_SPATIAL_DIMS: len(found.stride),
                a.CONVOLUTION_FILTER_STRIDES: found.stride,
                a.CONVOLUTION_PRE_PADDINGS: found.pad,
                a.CONVOLUTION_POST_PADDINGS: found.pad,
                a.CONVOLUTION_DILATIONS: found.dilation,
            },
        )
        kind, names = {
            "forward": (DescriptorType.OPERATION_CONVOLUTION_FORWARD, "FORWARD"),
            "data": (DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA, "BWD_DATA"),
            "filter": (DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER, "BWD_FILTER"),
        }[found.operation]
        # A gradient's name begins with D.
        x, w, y = {"forward": "XWY", "data": ("DX", "W", "DY"), "filter": ("X", "DW", "DY")}[
            found.operation
        ]
        tensors = self._tensors | {self._written: target}
        values = {
            "ALPHA": 1.0, "BETA": 0.0, "CONV_DESC": window,
            x: tensors["x"], w: tensors["w"], y: tensors["y"],
        }  # fmt: skip
        attributes = {a[f"OPERATION_CONVOLUTION_{names}_{k}"]: v for k, v in values.items()}
        self.operations.append(build(kind, attributes))
        self._result = target

    def _pointwise(self, mode: PointwiseMode, target: Descriptor) -> None:
        """An operation on what was computed last: with the bias, or what masks it."""
        a = Attribute
        attributes: dict[Attribute, Any] = {
            a.POINTWISE_MODE: mode,
            a.POINTWISE_MATH_PREC: DataType.FLOAT,
        }
        if mode is not PointwiseMode.ADD and self._convolution.relu:
            attributes[a.POINTWISE_RELU_LOWER_CLIP_SLOPE] = Double(self._convolution.relu)
        operands = {
            a.OPERATION_POINTWISE_PW_DESCRIPTOR: build(DescriptorType.POINTWISE, attributes)
        }
        if mode is PointwiseMode.RELU_BWD:
            operands[a.OPERATION_POINTWISE_DYDESC] = self._result
            operands[a.OPERATION_POINTWISE_XDESC] = self._tensors["mask"]
            operands[a.OPERATION_POINTWISE_DXDESC] = target
        else:
            operands[a.OPERATION_POINTWISE_XDESC] = self._result
            operands[a.OPERATION_POINTWISE_YDESC] = target
        if mode is PointwiseMode.ADD:
            operands[a.OPERATION_POINTWISE_BDESC] = self._tensors["b"]
        self.operations.append(build(DescriptorType.OPERATION_POINTWISE, operands))
        self._result = target


def _tensor(uid: int, operand: Operand, *, virtual: bool = False) -> Descriptor:
    return build(
        DescriptorType.TENSOR,
        {
            Attribute.TENSOR_UNIQUE_ID: uid,
            Attribute.TENSOR_DATA_TYPE: DATA_TYPES[operand.dtype],
            Attribute.TENSOR_DIMENSIONS: operand.shape,
            Attribute.TENSOR_STRIDES: operand.strides,
            Attribute.TENSOR_BYTE_ALIGNMENT: ALIGNMENT,
            Attribute.TENSOR_IS_VIRTUAL: virtual,
        },
    )
