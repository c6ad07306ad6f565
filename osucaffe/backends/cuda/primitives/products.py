"""Convolution and the inner product on the GPU: how their operands lie, and what may compute
them, which is chosen by timing (convolutions: see convolution/providers.py)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import primitives as ops
from ...tensor import Run, Tensor
from .. import tuned
from ..call import Candidate, Kernels, Pending, Provider, WithEpilogue
from ..convolution import providers
from ..convolution.gemm import Bound, Gemm
from ..convolution.operands import (
    bias_gradient,
    choose_row_major,
    choose_weight_layout,
)
from ..convolution.problem import Problem
from ..convolution.small_mma import TileConfig, small_product
from ..layout import ITEM_BYTES, Layout, choose_row_layout, dtype_of, is_row_major
from ..libraries.cublaslt import Product
from ..passes.elementwise import add_and_mask, bias_step
from ..passes.rows import sum_rows
from ..registry import Context, primitive
from ..runtime.compile import kernel
from ..runtime.launch import launch
from .normalization import choose_sums, sum_outputs


@primitive("own")
def convolution(ctx: Context, a: ops.Convolution) -> Pending:
    choose_weight_layout(a.w)
    choose_row_major(a.b)
    ctx.choose_layouts(a.x, a.y)
    if a.sums is not None:
        choose_sums(ctx, a.sums, a.y)
    offered = providers.forward(ctx, Problem.of(a.x, a.w, a.y, a))
    if a.sums is not None:
        offered = [each if each.sums else WithEpilogue(each, sum_outputs) for each in offered]
    return ctx.tune(offered)


@primitive("own")
def convolution_backward_data(ctx: Context, a: ops.ConvolutionBackwardData) -> Pending:
    choose_weight_layout(a.w)
    ctx.choose_layouts(a.dx, a.dy, a.addend, a.relu_output)
    return ctx.tune(providers.data_gradient(ctx, Problem.of(a.dx, a.w, a.dy, a)))


@primitive("own")
def convolution_backward_filter(ctx: Context, a: ops.ConvolutionBackwardFilter) -> Pending | Run:
    ctx.choose_layouts(a.x, a.dy)
    choose_row_major(a.db)
    if a.dw is None:
        return bias_gradient(ctx)
    choose_weight_layout(a.dw)
    return ctx.tune(providers.filter_gradient(ctx, Problem.of(a.x, a.dw, a.dy, a)))


SHAPES = (4, 16), (8, 8), (4, 4)
"""Of blocks of the kernel for gradients: rows, and warps that share their sums."""
TILE, MAX_WARPS, MAX_ROWS = 4, 8, 2**17

Size = tuple[int, int, int]


def _choose_layouts(ctx: Context, x: Tensor, w: Tensor | None, axis: int, transpose: bool) -> bool:
    """Choose open layouts; whether x and w are to be flattened with the channels last.

    Where x lies so, the columns of w do too, so that flattening x moves nothing.
    """
    if axis > 1:
        choose_row_layout(x, ctx.backend.dtype)
    ctx.backend.choose_layout(x)
    natural = not is_row_major(x) and axis == 1 and not transpose
    if w is None:
        return natural
    root = w.root
    if root.flexible:
        if natural:
            root.layout = Layout((w.shape[0], *x.shape[1:]), "float32", True)
        else:
            root.flexible = False
    return natural and w.layout is not None and w.layout.shape[1:] == x.shape[1:]


def low_precision_weights(ctx: Context, w: Tensor) -> Tensor:
    """Weights in the type of the precision, as they lie."""
    if ctx.backend.dtype != "float32" and w.base is None:
        return ctx.low_precision(w)
    return ctx.in_layout(w, nhwc=not is_row_major(w), dtype=ctx.backend.dtype)


def _operands(ctx: Context, nhwc: bool) -> Any:
    """An inner product's call on blobs and weights as matrices in the type of the precision. nhwc:
    images lie with the channels last."""

    def operand(name: str, tensor: Tensor) -> Tensor:
        if name == "w":
            return low_precision_weights(ctx, tensor)
        if name in ("b", "dw", "db"):
            return tensor
        image = name in ("x", "dx", "relu_output")
        return ctx.in_layout(tensor, nhwc=nhwc and image, dtype=ctx.backend.dtype)

    return ctx.call.on(operand)


def _tune(
    ctx: Context,
    a: ops.InnerProduct | ops.InnerProductBackwardData | ops.InnerProductBackwardFilter,
    product: Product,
    bind: Callable[[Context], Bound],
    small: Provider,
    more: Sequence[Provider] = (),
) -> Pending:
    """Let the tuner choose between cuBLASLt and, where there is little to do, our own kernels.
    small: without tensor cores; more: with them."""
    work, rows = product.m * product.n * product.k, product.m
    forward = isinstance(a, ops.InnerProduct)
    most = tuned.INNER_PRODUCT_MAX_WORK if forward else tuned.INNER_PRODUCT_MAX_GRADIENT_WORK
    own = [] if a.transpose else [*([small] if work <= most and rows <= MAX_ROWS else []), *more]
    return ctx.tune([Gemm(ctx.backend, product, bind), *own])


def _by_tensor_cores(ctx: Context, nhwc: bool, size: Size, *, flipped: bool) -> list[Kernels]:
    """The kernel for small convolutions, where it is worth trying, for outputs or (flipped) the
    gradient of the input. size: rows, columns and what is summed over, of the former."""
    found = small_product(ctx.backend, *size)
    if found is None:
        return []
    small = found.transposed if flipped else found

    def make(config: TileConfig, ctx: Context) -> Run:
        a = _operands(ctx, nhwc)
        x, b, mask, y = (a.dy, None, a.relu_output, a.dx) if flipped else (a.x, a.b, None, a.y)
        slope = 1.0 if flipped or a.relu is None else a.relu
        places = 0, 1, small.x[1], 0
        return small.correlation(config, x, places, a.w, b, mask, y, slope)

    configs = functools.partial(small.correlations, ctx.backend.properties)
    return [Kernels("small_mma", configs, make)]


# -- outputs ---------------------------------------------------------------------------------------


@primitive("own")
def inner_product(ctx: Context, a: ops.InnerProduct) -> Pending:
    backend = ctx.backend
    nhwc = _choose_layouts(ctx, a.x, a.w, a.axis, a.transpose)
    choose_row_layout(a.y, backend.dtype)
    choose_row_major(a.b)
    columns = a.w.shape[1 if a.transpose else 0]
    size = (a.y.count // columns, columns, math.prod(a.x.shape[a.axis :]))
    fuses = a.relu is None  # a slope it does not know, and NaN its ReLU makes 0 (in fp16)
    dtypes, epilogue = (backend.dtype, backend.dtype), "bias" if fuses and a.b is not None else ""
    product = Product(backend.precision, *size, False, not a.transpose, *dtypes, epilogue)

    def bind(ctx: Context) -> Bound:
        a: ops.InnerProduct = _operands(ctx, nhwc)
        if fuses:
            return Bound(a.x, a.w, a.y, a.b, [])
        return Bound(a.x, a.w, a.y, None, [bias_step(a.y, a.b, a.relu, columns)])

    tensor_cores = _by_tensor_cores(ctx, nhwc, size, flipped=False)
    return _tune(ctx, a, product, bind, _SmallProduct(size, nhwc), tensor_cores)


@dataclass(frozen=True)
class _SmallProduct(Provider):
    """A kernel of our own for outputs: see kernels/inner_product.cu. size: rows, columns and what
    is summed over."""

    size: Size
    nhwc: bool
    name = "small product"

    def candidates(self) -> Iterable[Candidate]:
        yield Candidate("product", self._make)

    def _make(self, ctx: Context) -> Run:
        a: ops.InnerProduct = _operands(ctx, self.nhwc)
        m, n, k = self.size
        vector = math.gcd(k, 16 // ITEM_BYTES[dtype_of(a.x)])
        warps = min(MAX_WARPS, -(-k // (32 * vector)))
        function = kernel("inner_product", "product", T=a.x, VEC=vector, WARPS=warps)
        arguments = [a.x, a.w, a.b, a.y, *self.size, 1.0 if a.relu is None else a.relu]
        return launch(function, (-(-n // TILE), -(-m // TILE)), arguments, block=(32, warps))


# -- gradients -------------------------------------------------------------------------------------


@primitive("own")
def inner_product_backward_data(ctx: Context, a: ops.InnerProductBackwardData) -> Pending:
    backend = ctx.backend
    nhwc = _choose_layouts(ctx, a.dx, a.w, a.axis, a.transpose)
    choose_row_layout(a.dy, backend.dtype)
    ctx.choose_layouts(a.relu_output)
    inside = math.prod(a.dx.shape[a.axis :])
    rows = a.dx.count // inside
    columns = a.dy.count // rows
    dtypes = backend.dtype, backend.dtype
    product = Product(backend.precision, rows, inside, columns, False, a.transpose, *dtypes)

    def bind(ctx: Context) -> Bound:
        a: ops.InnerProductBackwardData = _operands(ctx, nhwc)
        behind = [] if a.relu_output is None else [add_and_mask(a.dx, None, a.relu_output)]
        return Bound(a.dy, a.w, a.dx, None, behind)

    tensor_cores = _by_tensor_cores(ctx, nhwc, (rows, columns, inside), flipped=True)
    small = _SmallGradient((columns, rows, inside), nhwc)
    return _tune(ctx, a, product, bind, small, tensor_cores)


@primitive("own")
def inner_product_backward_filter(ctx: Context, a: ops.InnerProductBackwardFilter) -> Pending | Run:
    backend = ctx.backend
    nhwc = _choose_layouts(ctx, a.x, a.dw, a.axis, a.transpose)
    choose_row_layout(a.dy, backend.dtype)
    inside = math.prod(a.x.shape[a.axis :])
    rows = a.x.count // inside
    columns = a.dy.count // rows
    choose_row_major(a.db)
    if a.dw is None:
        return _bias_gradient(rows, ctx)
    size = (inside, columns, rows) if a.transpose else (columns, inside, rows)
    accumulate = "dw" in a.accumulates
    dtypes = backend.dtype, dtype_of(a.dw)
    product = Product(backend.precision, *size, True, False, *dtypes, accumulate=accumulate)

    def bind(ctx: Context) -> Bound:
        a: ops.InnerProductBackwardFilter = _operands(ctx, nhwc)
        left, right = (a.x, a.dy) if a.transpose else (a.dy, a.x)
        behind = [] if a.db is None else [_bias_gradient(rows, ctx)]
        return Bound(left, right, ctx.call.dw, None, behind)

    return _tune(ctx, a, product, bind, _SmallGradient((rows, columns, inside), nhwc))


def _bias_gradient(rows: int, ctx: Context) -> Run:
    dy = ctx.in_layout(ctx.call.dy, nhwc=False, dtype=ctx.backend.dtype)
    return sum_rows(ctx, dy, ctx.call.db, rows, accumulate="db" in ctx.call.accumulates)


@dataclass(frozen=True)
class _SmallGradient(Provider):
    """A kernel of our own for gradients of the input, or of weights and biases: see
    kernels/inner_product.cu. size: what is summed over, rows and columns of the result."""

    size: Size
    nhwc: bool
    name = "small product"

    def candidates(self) -> Iterable[Candidate]:
        for height, warps in SHAPES:
            yield Candidate(f"{height} {warps}", functools.partial(self._make, height, warps))

    def _make(self, height: int, warps: int, ctx: Context) -> Run:
        a = _operands(ctx, self.nhwc)
        transposed = isinstance(a, ops.InnerProductBackwardData)
        if transposed:
            right, mask, result, bias = a.w, a.relu_output, a.dx, None
        else:
            right, mask, result, bias = a.x, None, a.dw, a.db
        accumulates = [name in a.accumulates for name in ("dw", "db")]
        _, n, k = self.size
        vector = math.gcd(k, 4)
        function = kernel(
            "inner_product", "gradient", T=right, R=result, COLUMNS=vector, ROWS=height,
            WARPS=warps, BATCH=4, TRANSPOSED=transposed,
        )  # fmt: skip
        grid = -(-k // (32 * vector)), -(-n // height)
        arguments = [a.dy, right, mask, result, bias, *self.size, *accumulates]
        return launch(function, grid, arguments, block=(32, warps))
