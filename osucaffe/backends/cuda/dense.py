"""Owns the inner product on the GPU: matrix products by cuBLASLt."""

from __future__ import annotations

import math

from ..tensor import Step, Tensor, sequence
from .convolution import settle_row_major
from .layout import Layout, is_row_major
from .registry import CudaCall, primitive
from .rows import sum_rows
from .ways import bias_step, fastest, product_ways


def _root(tensor: Tensor) -> Tensor:
    while tensor.like is not None:
        tensor = tensor.like
    return tensor


def _settle(call: CudaCall, x: Tensor, w: Tensor | None, axis: int, transpose: bool) -> bool:
    """Choose open layouts; whether x and w are to be flattened with the channels last.

    Where x lies so, the columns of w do too, so that flattening x moves nothing.
    """
    call.backend.settle(x)
    natural = not is_row_major(x) and axis % len(x.shape) == 1 and not transpose
    if w is None:
        return natural
    root = _root(w)
    if root.flexible:
        if natural:
            root.layout = Layout((w.shape[0], *x.shape[1:]), "float32", True)
        else:
            root.flexible = False
    return natural and w.layout is not None and w.layout.shape[1:] == x.shape[1:]


def _weights(call: CudaCall, w: Tensor) -> Tensor:
    """The weights in the type of the precision, as they lie."""
    backend = call.backend
    if backend.dtype != "float32" and w.base is None:
        return backend.shadow(w)
    return call.held(w, nhwc=not is_row_major(w), dtype=backend.dtype)


def _held(call: CudaCall, tensor: Tensor, nhwc: bool) -> Tensor:
    return call.held(tensor, nhwc=nhwc, dtype=call.backend.dtype)


@primitive("own")
def inner_product(
    call: CudaCall,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    *,
    axis: int,
    transpose: bool,
    relu: float | None = None,
) -> Step:
    nhwc = _settle(call, x, w, axis, transpose)
    call.backend.settle(y)
    settle_row_major(b)
    weights = _weights(call, w)
    inputs, outputs = _held(call, x, nhwc), _held(call, y, False)
    columns = w.shape[1 if transpose else 0]
    inside = math.prod(x.shape[axis:])
    size = (outputs.count // columns, columns, inside)
    if relu in (None, 0):
        epilogue = f"{'bias' if b is not None else ''} {'relu' if relu == 0 else ''}".strip()
        ways = product_ways(
            call, inputs, weights, outputs, size, transpose_b=not transpose, bias=b,
            epilogue=epilogue,
        )  # fmt: skip
        if ways:
            return fastest(call, ways)
    ways = product_ways(call, inputs, weights, outputs, size, transpose_b=not transpose)
    return sequence([fastest(call, ways), bias_step(outputs, b, relu, columns)])


@primitive("own")
def inner_product_backward_data(
    call: CudaCall, dy: Tensor, w: Tensor, dx: Tensor, *, axis: int, transpose: bool
) -> Step:
    nhwc = _settle(call, dx, w, axis, transpose)
    call.backend.settle(dy)
    weights = _weights(call, w)
    gradients, images = _held(call, dy, False), _held(call, dx, nhwc)
    inside = math.prod(dx.shape[axis:])
    rows = dx.count // inside
    size = (rows, inside, dy.count // rows)
    ways = product_ways(call, gradients, weights, images, size, transpose_b=transpose)
    return fastest(call, ways)


@primitive("own")
def inner_product_backward_filter(
    call: CudaCall,
    x: Tensor,
    dy: Tensor,
    dw: Tensor | None,
    db: Tensor | None,
    *,
    axis: int,
    transpose: bool,
) -> Step:
    nhwc = _settle(call, x, dw, axis, transpose)
    call.backend.settle(dy)
    gradients = _held(call, dy, False)
    inside = math.prod(x.shape[axis:])
    rows = x.count // inside
    columns = dy.count // rows
    steps: list[Step] = []
    if dw is not None:
        inputs = _held(call, x, nhwc)
        accumulate = "dw" in call.accumulates
        left, right, size = gradients, inputs, (columns, inside, rows)
        if transpose:
            left, right, size = inputs, gradients, (inside, columns, rows)
        ways = product_ways(call, left, right, dw, size, transpose_a=True, accumulate=accumulate)
        steps.append(fastest(call, ways))
    if db is not None:
        settle_row_major(db)
        steps.append(sum_rows(call, gradients, db, rows, accumulate="db" in call.accumulates))
    return sequence(steps)
