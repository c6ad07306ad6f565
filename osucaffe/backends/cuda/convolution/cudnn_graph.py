"""What cuDNN is asked for: convolutions, with what is fused into them, and their graphs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...tensor import Shape
from ..layout import ITEM_BYTES, channels_last
from ..libraries.cudnn import Descriptor, Handle, build, operation_graph
from ..libraries.cudnn_enums import (
    Attribute,
    ConvolutionMode,
    DataType,
    DescriptorType,
    PointwiseMode,
)
from .problem import Problem

UIDS = {"x": 1, "w": 2, "y": 3, "b": 4}
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


_OPERATIONS: dict[str, tuple[DescriptorType, str, Sequence[str]]] = {
    "forward": (DescriptorType.OPERATION_CONVOLUTION_FORWARD, "FORWARD", "XWY"),
    "data": (DescriptorType.OPERATION_CONVOLUTION_BACKWARD_DATA, "BWD_DATA", ("DX", "W", "DY")),
    "filter": (
        DescriptorType.OPERATION_CONVOLUTION_BACKWARD_FILTER, "BWD_FILTER", ("X", "DW", "DY"),
    ),
}  # fmt: skip
"""By operation: cuDNN's, and how it calls that, x, w and y (a gradient's name begins with D)."""


class Operand(NamedTuple):
    """A tensor as cuDNN sees it: (N, C, *extents), which lies channels last; element type."""

    shape: Shape
    dtype: str

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""
        return channels_last(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Convolution:
    """What determines a plan.

    operation: "forward" (y from x, w and, where there is one, b), "data" (x's gradient from y's
    and w) or "filter" (w's gradient from x and y's).
    precision: one of backend.PRECISIONS. Of "forward" alone: bias: b's type; relu: with a ReLU.
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
    relu: bool = False

    @classmethod
    def of(cls, problem: Problem, operation: str, precision: str, dtype: str) -> Convolution:
        """That of tensors with elements of dtype. (N, C, L) becomes (N, C, 1, L)."""
        shapes, (stride, pad, dilation) = [problem.x, problem.w, problem.y], problem.window
        if len(stride) == 1:
            stride, pad, dilation = (1, *stride), (0, *pad), (1, *dilation)
            shapes = [(*shape[:2], 1, shape[2]) for shape in shapes]
        x, w, y = (Operand(shape, dtype) for shape in shapes)
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
            ones = [1] * (len(self.y.shape) - 2)
            result["b"] = Operand((1, self.y.shape[1], *ones), self.bias)
        return {**result, written[0]: written[1]}

    def graph(self, handle: Handle) -> Descriptor:
        """Its operations, as cuDNN wants them. CudnnError where it does not know such a graph."""
        operands = self.operands
        tensors = {name: _tensor(UIDS[name], operand) for name, operand in operands.items()}
        *_, written = operands
        behind = [PointwiseMode.ADD] * bool(self.bias)
        behind += [PointwiseMode.RELU_FWD] * self.relu
        # What one operation hands to the next never is in memory.
        between = operands[written]._replace(dtype="float32")
        results = [
            *(_tensor(FIRST_VIRTUAL + i, between, virtual=True) for i in range(len(behind))),
            tensors[written],
        ]
        operations = [self._convolve(tensors | {written: results[0]})]
        for mode, (x, y) in zip(behind, itertools.pairwise(results), strict=True):
            operations.append(self._pointwise(mode, x, y, tensors))
        return operation_graph(handle, operations)

    def _convolve(self, tensors: dict[str, Descriptor]) -> Descriptor:
        a = Attribute
        window = build(
            DescriptorType.CONVOLUTION,
            {
                a.CONVOLUTION_COMP_TYPE: DataType.FLOAT,
                a.CONVOLUTION_CONV_MODE: ConvolutionMode.CROSS_CORRELATION,
                a.CONVOLUTION_SPATIAL_DIMS: len(self.stride),
                a.CONVOLUTION_FILTER_STRIDES: self.stride,
                a.CONVOLUTION_PRE_PADDINGS: self.pad,
                a.CONVOLUTION_POST_PADDINGS: self.pad,
                a.CONVOLUTION_DILATIONS: self.dilation,
            },
        )
        kind, prefix, names = _OPERATIONS[self.operation]
        values = {"ALPHA": 1.0, "BETA": 0.0, "CONV_DESC": window}
        values |= {name: tensors[mine] for name, mine in zip(names, "xwy", strict=True)}
        return build(
            kind, {a[f"OPERATION_CONVOLUTION_{prefix}_{name}"]: v for name, v in values.items()}
        )

    def _pointwise(
        self, mode: PointwiseMode, x: Descriptor, y: Descriptor, tensors: dict[str, Descriptor]
    ) -> Descriptor:
        """An operation on x, what was computed last: with the bias."""
        a = Attribute
        kind = {a.POINTWISE_MODE: mode, a.POINTWISE_MATH_PREC: DataType.FLOAT}
        operands: dict[Attribute, Any] = {
            a.OPERATION_POINTWISE_PW_DESCRIPTOR: build(DescriptorType.POINTWISE, kind),
            a.OPERATION_POINTWISE_XDESC: x,
            a.OPERATION_POINTWISE_YDESC: y,
        }
        if mode is PointwiseMode.ADD:
            operands[a.OPERATION_POINTWISE_BDESC] = tensors["b"]
        return build(DescriptorType.OPERATION_POINTWISE, operands)


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
