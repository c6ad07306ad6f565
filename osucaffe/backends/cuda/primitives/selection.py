"""Owns the primitives that pick elements: gather and its gradients, top_k."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...tensor import Step, Tensor
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


def _sizes(table: Tensor, index: Tensor) -> list[Any]:
    """The rows of the table, the picks, the elements of a row."""
    inner = math.prod(table.shape[1:])
    return [np.int32(table.shape[0]), np.int32(index.count), np.int64(inner)]


@primitive("own")
def gather(call: CudaCall, x: Tensor, index: Tensor, y: Tensor) -> Step:
    x, index, y = (call.row_major(tensor) for tensor in (x, index, y))
    arguments = [x, index, y, *_sizes(x, index)]
    return launch(kernel("selection", "gather"), blocks_for(y.count), arguments)


@primitive("own")
def gather_backward(call: CudaCall, dy: Tensor, index: Tensor, dx: Tensor) -> Step:
    return _scatter(call, dy, index, dx, accumulate=False)


@primitive("own")
def gather_gradient(call: CudaCall, dy: Tensor, index: Tensor, dw: Tensor) -> Step:
    return _scatter(call, dy, index, dw, accumulate="dw" in call.accumulates)


def _scatter(call: CudaCall, dy: Tensor, index: Tensor, dx: Tensor, *, accumulate: bool) -> Step:
    dy, index, dx = (call.row_major(tensor) for tensor in (dy, index, dx))
    added = np.int32(accumulate and not call.after)  # a conversion adds otherwise
    arguments = [dy, index, dx, *_sizes(dx, index), added]
    return launch(kernel("selection", "gather_backward"), blocks_for(dx.count), arguments)


@primitive("own")
def top_k(
    call: CudaCall, x: Tensor, index: Tensor | None, value: Tensor | None, *, axis: int
) -> Step:
    axis %= len(x.shape)
    given = next(tensor for tensor in (index, value) if tensor is not None)
    x = call.row_major(x)
    index, value = (None if tensor is None else call.row_major(tensor) for tensor in (index, value))
    step = np.int64(math.prod(x.shape[axis + 1 :]))
    lengths = [np.int32(x.shape[axis]), np.int32(given.shape[axis])]
    arguments = [x, index, value, np.int64(x.count), *lengths, step]
    return launch(kernel("selection", "top_k"), blocks_for(x.count), arguments)
