"""Owns the primitives that pick elements: gather and its gradients, top_k."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...primitives.losses import TopK
from ...primitives.movement import Gather, GatherBackward, GatherGradient
from ...tensor import Step, Tensor
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


def _sizes(table: Tensor, index: Tensor) -> list[Any]:
    """The rows of the table, the picks, the elements of a row."""
    inner = math.prod(table.shape[1:])
    return [np.int32(table.shape[0]), np.int32(index.count), np.int64(inner)]


@primitive("plain")
def gather(call: CudaCall, a: Gather) -> Step:
    arguments = [a.x, a.index, a.y, *_sizes(a.x, a.index)]
    return launch(kernel("selection", "gather"), blocks_for(a.y.count), arguments)


@primitive("plain")
def gather_backward(call: CudaCall, a: GatherBackward) -> Step:
    return _scatter(a.dy, a.index, a.dx, accumulate=False)


@primitive("plain")
def gather_gradient(call: CudaCall, a: GatherGradient) -> Step:
    # A conversion behind it adds otherwise.
    return _scatter(a.dy, a.index, a.dw, accumulate="dw" in call.accumulates and not call.after)


def _scatter(dy: Tensor, index: Tensor, dx: Tensor, *, accumulate: bool) -> Step:
    arguments = [dy, index, dx, *_sizes(dx, index), np.int32(accumulate)]
    return launch(kernel("selection", "gather_backward"), blocks_for(dx.count), arguments)


@primitive("plain")
def top_k(call: CudaCall, a: TopK) -> Step:
    step = np.int64(math.prod(a.x.shape[a.axis + 1 :]))
    lengths = [np.int32(a.x.shape[a.axis]), np.int32(a.length)]
    arguments = [a.x, a.index, a.value, np.int64(a.x.count), *lengths, step]
    return launch(kernel("selection", "top_k"), blocks_for(a.x.count), arguments)
