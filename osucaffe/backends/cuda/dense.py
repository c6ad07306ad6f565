"""Owns the inner product on the GPU: matrix products by cuBLASLt, small ones by a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..tensor import Step, Tensor
from .convolution import settle_row_major
from .elementwise import mask_step
from .kernels import kernel, launch
from .layout import C_TYPES, ITEM_BYTES, Layout, dtype_of, is_row_major, settle_rows
from .library import bias_step, product_ways
from .registry import CudaCall, primitive
from .rows import sum_rows
from .ways import Maker, Way, fastest, measured

MOST_WORK = 2e7
"""Multiplications up to which it is worth trying whether the kernel of our own is the fastest."""
MOST_GRADIENT_WORK = 3e7
"""The same for gradients of weights."""
SHAPES = (4, 16), (8, 8), (4, 4)
"""Of blocks of the kernel for gradients: rows, and warps that share their sums."""
TILE, MOST_WARPS, MOST_ROWS = 4, 8, 2**17


def _settle(call: CudaCall, x: Tensor, w: Tensor | None, axis: int, transpose: bool) -> bool:
    """Choose open layouts; whether x and w are to be flattened with the channels last.

    Where x lies so, the columns of w do too, so that flattening x moves nothing.
    """
    if axis % len(x.shape) > 1:
        settle_rows(x, call.backend.dtype)
    call.backend.settle(x)
    natural = not is_row_major(x) and axis % len(x.shape) == 1 and not transpose
    if w is None:
        return natural
    root = w.root
    if root.flexible:
        if natural:
            root.layout = Layout((w.shape[0], *x.shape[1:]), "float32", True)
        else:
            root.flexible = False
    return natural and w.layout is not None and w.layout.shape[1:] == x.shape[1:]


def short_weights(call: CudaCall, w: Tensor) -> Tensor:
    """Weights in the type of the precision, as they lie."""
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
    settle_rows(y, call.backend.dtype)
    settle_row_major(b)
    weights = short_weights(call, w)
    inputs, outputs = _held(call, x, nhwc), _held(call, y, False)
    columns = w.shape[1 if transpose else 0]
    inside = math.prod(x.shape[axis:])
    size = (outputs.count // columns, columns, inside)
    small = []
    if not transpose and math.prod(size) <= MOST_WORK and size[0] <= MOST_ROWS:
        slope = 1.0 if relu is None else relu
        small = _small_ways(call, inputs, weights, b, outputs, size, slope)
    if relu in (None, 0):
        epilogue = f"{'bias' if b is not None else ''} {'relu' if relu == 0 else ''}".strip()
        ways = product_ways(
            call, inputs, weights, outputs, size, transpose_b=not transpose, bias=b,
            epilogue=epilogue,
        )  # fmt: skip
        if ways:
            return fastest(call, ways + small)
    ways = product_ways(call, inputs, weights, outputs, size, transpose_b=not transpose)
    bias = lambda: bias_step(outputs, b, relu, columns)  # noqa: E731
    passed = 2 * call.backend.nbytes(outputs)
    return fastest(call, [*(way.then(bias, passed) for way in ways), *small])


def _small_ways(
    call: CudaCall,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    size: tuple[int, int, int],
    slope: float,
) -> list[Way]:
    """The way to compute an inner product by a kernel of our own: see kernels/dense.cu."""
    m, n, k = size
    vector = math.gcd(k, 16 // ITEM_BYTES[dtype_of(x)])
    warps = min(MOST_WARPS, -(-k // (32 * vector)))
    function = kernel("dense", "product", T=C_TYPES[dtype_of(x)], VEC=vector, WARPS=warps)
    grid, counts = (-(-n // TILE), -(-m // TILE)), [np.int32(each) for each in size]
    return measured(
        call,
        {"x": x, "w": w, "b": b, "y": y},
        {
            f"product {m} {n} {k} {dtype_of(x)} {b is None} {slope}": lambda _, t: launch(
                function, grid, [t["x"], t["w"], t["b"], t["y"], *counts, np.float32(slope)],
                block=(32, warps),
            )
        },
    )  # fmt: skip


@primitive("own")
def inner_product_backward_data(
    call: CudaCall,
    dy: Tensor,
    w: Tensor,
    dx: Tensor,
    *,
    axis: int,
    transpose: bool,
    positive: Tensor | None = None,
) -> Step:
    """positive: the output of a ReLU whose backward pass is folded in (by the fusion pass)."""
    nhwc = _settle(call, dx, w, axis, transpose)
    settle_rows(dy, call.backend.dtype)
    weights = short_weights(call, w)
    gradients, images = _held(call, dy, False), _held(call, dx, nhwc)
    inside = math.prod(dx.shape[axis:])
    rows = dx.count // inside
    size = (rows, inside, dy.count // rows)
    ways = product_ways(call, gradients, weights, images, size, transpose_b=transpose)
    mask = None if positive is None else _held(call, positive, nhwc)
    if mask is not None:
        masked = lambda: mask_step(images, mask)  # noqa: E731
        ways = [way.then(masked, 3 * call.backend.nbytes(images)) for way in ways]
    if not transpose and math.prod(size) <= MOST_GRADIENT_WORK and rows <= MOST_ROWS:
        tensors = {"a": gradients, "b": weights, "positive": mask, "c": images, "d": None}
        ways += _small_gradients(call, tensors, (size[2], rows, inside), turned=True)
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
    settle_rows(dy, call.backend.dtype)
    gradients = _held(call, dy, False)
    inside = math.prod(x.shape[axis:])
    rows = x.count // inside
    columns = dy.count // rows
    settle_row_major(db)

    def bias_gradient() -> Step:
        assert db is not None
        return sum_rows(call, gradients, db, rows, accumulate="db" in call.accumulates)

    if dw is None:
        return bias_gradient()
    inputs = _held(call, x, nhwc)
    accumulate = "dw" in call.accumulates
    left, right, size = gradients, inputs, (columns, inside, rows)
    if transpose:
        left, right, size = inputs, gradients, (inside, columns, rows)
    ways = product_ways(call, left, right, dw, size, transpose_a=True, accumulate=accumulate)
    if db is not None:
        ways = [way.then(bias_gradient, call.backend.nbytes(gradients)) for way in ways]
    if not transpose and math.prod(size) <= MOST_GRADIENT_WORK and columns <= MOST_ROWS:
        tensors = {"a": gradients, "b": inputs, "positive": None, "c": dw, "d": db}
        added = ["dw" in call.accumulates, "db" in call.accumulates]
        ways += _small_gradients(call, tensors, (rows, columns, inside), added=added)
    return fastest(call, ways)


def _small_gradients(
    call: CudaCall,
    tensors: dict[str, Tensor | None],
    size: tuple[int, int, int],
    *,
    turned: bool = False,
    added: Sequence[bool] = (False, False),
) -> list[Way]:
    """The ways to compute gradients by a kernel of our own: see kernels/dense.cu."""
    _, n, k = size
    dtype, result = (dtype_of(each) for name in "bc" if (each := tensors[name]))
    vector = math.gcd(k, 4)
    counts = [np.int32(each) for each in (*size, *added)]

    def maker(height: int, warps: int) -> Maker:
        function = kernel(
            "dense", "gradient", T=C_TYPES[dtype], R=C_TYPES[result], COLUMNS=vector, ROWS=height,
            WARPS=warps, BATCH=4, TURNED=int(turned),
        )  # fmt: skip
        grid = -(-k // (32 * vector)), -(-n // height)
        return lambda _, t: launch(function, grid, [*t.values(), *counts], block=(32, warps))

    given = [name for name, tensor in tensors.items() if tensor is not None]
    return measured(
        call,
        tensors,
        {
            f"gradient {size} {dtype} {result} {given} {turned} {added} {shape}": maker(*shape)
            for shape in SHAPES
        },
    )
