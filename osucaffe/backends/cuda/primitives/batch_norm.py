"""Owns batch normalization on the GPU: with the channels last, in as few passes as can be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...primitives.normalization import BatchNorm, BatchNormBackward, BatchNormStatistics
from ...tensor import Step, Tensor, sequence
from ..convolution.operands import choose_row_major
from ..layout import C_TYPES, ITEM_BYTES, dtype_of
from ..registry import CudaCall, primitive
from ..runtime import device
from ..runtime.compile import kernel
from ..runtime.launch import THREADS, launch

MOST_GROUPS = 32
AT_ONCE = 4
"""Rows that a thread treats at once, as in batch_norm.cu."""


class _Matrix:
    """Blobs of one shape as matrices of pixels by channels, and the launches over them.

    blobs: those of the call, by name; they are held in the type of x with the channels last.
    """

    def __init__(self, call: CudaCall, x: Tensor, *others: Tensor | None) -> None:
        for tensor in (x, *others):
            if tensor is not None:
                call.backend.choose_layout(tensor)
        self.call = call
        self.dtype = dtype_of(x)
        self.x = self.in_layout(x)
        self.channels = x.shape[1]
        self.rows = x.count // self.channels
        vector = math.gcd(self.channels, 16 // ITEM_BYTES[self.dtype])
        vectors = self.channels // vector
        across = -(-vectors // MOST_GROUPS)
        groups = -(-vectors // across)
        lanes = THREADS // groups
        self.macros = {
            "T": C_TYPES[self.dtype], "VEC": vector, "C": self.channels, "GROUPS": groups,
            "LANES": lanes,
        }  # fmt: skip
        enough = -(-device.current().enough_blocks // across)
        parts = min(enough, -(-self.rows // (lanes * AT_ONCE)))
        self.grid, self.block = (across, parts), groups * lanes

    def in_layout(self, tensor: Tensor) -> Tensor:
        """A blob as the kernels want it."""
        return self.call.in_layout(tensor, nhwc=True, dtype=self.dtype)

    def partial(self) -> Tensor:
        """Memory for two sums of each channel and part."""
        return self.call.temporary((2, self.grid[1], self.channels))

    def over(self, name: str, arguments: list[Any], **flags: Any) -> Step:
        """A step that launches a kernel over the whole matrix."""
        macros = self.macros | {flag: int(value) for flag, value in flags.items()}
        given = [*arguments, np.int64(self.rows)]
        return launch(kernel("batch_norm", name, **macros), self.grid, given, block=self.block)

    def finish(self, name: str, arguments: list[Any], **flags: Any) -> Step:
        """A step that launches a kernel with 32 threads for each channel."""
        macros = self.macros | {flag: int(value) for flag, value in flags.items()}
        grid = -(-self.channels // 32)
        return launch(kernel("batch_norm", name, **macros), grid, arguments, block=(32, 32))


NO_FORWARD = {"ADDEND": 0, "RELU": 0}


@primitive("own")
def batch_norm_statistics(call: CudaCall, a: BatchNormStatistics) -> Step:
    for tensor in a.mean, a.rate, a.past_means, a.past_variances, a.past_weight:
        choose_row_major(tensor)
    matrix = _Matrix(call, a.x)
    partial = matrix.partial()
    rows = matrix.rows
    numbers = [1 / rows, rows / max(rows - 1, 1), a.eps, a.fraction]
    finish = [
        matrix.x, partial, a.mean, a.rate, a.past_means, a.past_variances, a.past_weight,
        np.int32(matrix.grid[1]), *map(np.float32, numbers),
    ]  # fmt: skip
    return sequence([
        matrix.over("sum_squares", [matrix.x, partial], **NO_FORWARD),
        matrix.finish("finish_statistics", finish, **NO_FORWARD),
    ])  # fmt: skip


@primitive("own")
def batch_norm(call: CudaCall, a: BatchNorm) -> Step:
    small = [a.mean, a.rate, a.scale, a.bias]
    for tensor in small:
        choose_row_major(tensor)
    matrix = _Matrix(call, a.x, a.addend, a.y)
    added = None if a.addend is None else matrix.in_layout(a.addend)
    arguments = [matrix.x, *small, added, matrix.in_layout(a.y)]
    return matrix.over("normalize", arguments, ADDEND=a.addend is not None, RELU=a.relu)


@primitive("own")
def batch_norm_backward(call: CudaCall, a: BatchNormBackward) -> Step:
    for tensor in a.mean, a.rate, a.scale, a.bias, a.dscale, a.dbias:
        choose_row_major(tensor)
    matrix = _Matrix(call, a.x, *a.dys, a.relu_output, a.dy, a.dx)
    first, *others = [matrix.in_layout(part) for part in a.dys]
    mask = matrix.in_layout(a.relu_output) if a.relu and a.relu_output is not None else None
    whole = None if a.dy is None else matrix.in_layout(a.dy)
    small = [a.mean, a.rate, a.scale, a.bias]
    averages = call.temporary((2, matrix.channels))
    steps: list[Step] = []

    def gradients(target: Tensor | None, partial: Tensor | None, **flags: Any) -> Step:
        parts = [first, others[0] if others else None, mask]
        arguments = [matrix.x, *parts, *small, averages, target, partial]
        masked = a.relu and (whole is None or flags["SUMS"])
        return matrix.over(
            "gradients", arguments, PARTS=1 + len(others), ADDEND=0, RELU=masked,
            POSITIVE=masked and mask is not None, **flags,
        )  # fmt: skip

    average = a.dx is not None and not a.constant
    if average or whole is not None or a.dscale is not None or a.dbias is not None:
        partial = matrix.partial()
        steps.append(gradients(whole, partial, SUMS=1, WHOLE=whole is not None, AVERAGES=0))
        finish = [
            partial, a.rate, a.dscale, a.dbias, averages, np.int32(matrix.grid[1]),
            np.float32(1 / matrix.rows), *(np.int32(n in call.accumulates) for n in GRADIENTS),
        ]  # fmt: skip
        none = dict.fromkeys(("ADDEND", "RELU", "POSITIVE", "SUMS", "WHOLE", "AVERAGES"), 0)
        steps.append(matrix.finish("finish_gradients", finish, PARTS=1, **none))
    if a.dx is not None:
        if whole is not None:  # it is their sum, behind the ReLU
            first, others = whole, []
        steps.append(gradients(matrix.in_layout(a.dx), None, SUMS=0, WHOLE=0, AVERAGES=average))
    return sequence(steps)


GRADIENTS = ("dscale", "dbias")
