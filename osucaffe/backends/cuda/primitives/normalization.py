"""Local response normalization, softmax and batch normalization on the GPU: the last with the
channels last, in as few passes as can be."""

from __future__ import annotations

import math
from typing import Any

from ... import primitives as ops
from ...tensor import Run, Shape, Tensor, sequence
from ..convolution.operands import choose_row_major
from ..layout import ITEM_BYTES, Layout, Opaque, dtype_of, is_channels_last
from ..passes.elementwise import fill_step
from ..registry import Context, primitive
from ..runtime import device
from ..runtime.compile import kernel
from ..runtime.launch import THREADS, blocks_for, launch
from .pooling import over_images


def _lrn(a: ops.Lrn | ops.LrnBackward, *tensors: Tensor, relu: bool = False) -> Run:
    """A step over (x, y), or backward over (x, dy, dx); within a channel the note stands before or
    after the last."""
    x = tensors[0]
    channels, vector = x.shape[1], math.gcd(x.shape[1], 16 // ITEM_BYTES[dtype_of(x)])
    backward = a.name.removeprefix("lrn")
    macros = {"T": x, "SIZE": a.size, "RELU": relu}
    if a.within_channel:
        function = kernel("lrn", f"lrn_within{backward}", **macros)
        arguments = [*tensors, x.count, *x.shape[2:], channels, a.alpha, a.beta]
        return launch(function, blocks_for(x.count), arguments)
    macros |= {"VEC": vector, "GROUPS": channels // vector}
    function = kernel("lrn", f"lrn_across{backward}", **macros)
    count = x.count // vector
    return launch(function, blocks_for(count), [*tensors, count, a.alpha, a.beta, a.k])


@primitive("own")
def lrn(ctx: Context, a: ops.Lrn) -> Run:
    note = a.workspace
    ctx.choose_layouts(a.x, a.y)
    if note is not None:
        if not a.within_channel and note.flexible:
            note.layout = Opaque("float32")  # to make the sums again is faster than to read them
        ctx.backend.choose_layout(note, "float32")
    y = ctx.in_layout(a.y, nhwc=True)
    x = ctx.in_layout(a.x, nhwc=True, dtype=dtype_of(y))
    if not a.within_channel:
        return _lrn(a, x, y)
    # The kernel writes the sums in any case.
    note = ctx.temporary(x.shape) if note is None else ctx.in_layout(note, nhwc=True)
    return _lrn(a, x, y, note)


@primitive("own")
def lrn_backward(ctx: Context, a: ops.LrnBackward) -> Run:
    ctx.choose_layouts(a.x, a.dy, a.dx)
    relu = a.relu_output is not None
    assert a.relu_output in (None, a.x), "only the ReLU that made x can be fused"
    dx = ctx.in_layout(a.dx, nhwc=True)
    x, dy = (ctx.in_layout(each, nhwc=True, dtype=dtype_of(dx)) for each in (a.x, a.dy))
    if not a.within_channel:
        return _lrn(a, x, dy, dx, relu=relu)
    return _lrn(a, x, dy, ctx.in_layout(a.workspace, nhwc=True), dx, relu=relu)


class Rows:
    """Tensors of one shape as rows along an axis: `count` of `length` elements, `stride` apart.

    tensors: in one memory order, in which the rows' elements are evenly spaced.
    """

    def __init__(self, ctx: Context, axis: int, *tensors: Tensor) -> None:
        ctx.choose_layouts(*tensors)
        shape = tensors[0].shape
        nhwc = axis == 1 and any(is_channels_last(tensor) for tensor in tensors)
        self.tensors = [ctx.in_layout(tensor, nhwc=nhwc) for tensor in tensors]
        self.length = shape[axis]
        self.count = math.prod(shape) // max(1, self.length)
        self.stride = 1 if nhwc else math.prod(shape[axis + 1 :])

    @property
    def shape(self) -> list[int]:
        """The kernels' arguments that describe the rows."""
        return [self.count, self.length, self.stride]

    def launch(self, name: str, tensors: list[Tensor], *others: int, **macros: Any) -> Run:
        """A step that launches a kernel of loss.cu, a warp for each row."""
        function = kernel("loss", name, **macros)
        return launch(function, blocks_for(self.count * 32), [*tensors, *self.shape, *others])


@primitive("own")
def softmax(ctx: Context, a: ops.Softmax) -> Run:
    rows = Rows(ctx, a.axis, a.x, a.y)
    x, y = rows.tensors
    return rows.launch("softmax", [x, y], X_T=x, Y_T=y)


@primitive("own")
def softmax_backward(ctx: Context, a: ops.SoftmaxBackward) -> Run:
    rows = Rows(ctx, a.axis, a.y, a.dy, a.dx)
    y, dy, dx = rows.tensors
    return rows.launch("softmax_backward", [y, dy, dx], X_T=y, Y_T=dy, DX_T=dx)


MAX_GROUPS = 32
AT_ONCE = 4
"""Rows that a thread treats at once, as in batch_norm.cu."""


class _Matrix:
    """Blobs of one shape as matrices of pixels by channels, and the launches over them.

    Blobs are held in the type of x with the channels last. subsample: of their pixels the kernels
    treat those that such steps in rows and columns reach.
    """

    def __init__(
        self, ctx: Context, x: Tensor, *others: Tensor | None, subsample: Shape | None = None
    ) -> None:
        for tensor in (x, *others):
            if tensor is not None:
                ctx.backend.choose_layout(tensor)
        self.ctx = ctx
        self.dtype = dtype_of(x)
        self.x = self.in_layout(x)
        self.channels = x.shape[1]
        self.rows = x.count // self.channels
        places: dict[str, Any] = {}
        if subsample:
            places = dict(zip(("DOWN", "RIGHT", "H", "W"), (*subsample, *x.shape[2:]), strict=True))
            extents = zip(x.shape[2:], subsample, strict=True)
            self.rows = x.shape[0] * math.prod(-(-extent // step) for extent, step in extents)
        vector = math.gcd(self.channels, 16 // ITEM_BYTES[self.dtype])
        vectors = self.channels // vector
        across = -(-vectors // MAX_GROUPS)
        groups = -(-vectors // across)
        lanes = THREADS // groups
        self.macros: dict[str, Any] = places | {
            "T": self.x, "VEC": vector, "C": self.channels, "GROUPS": groups, "LANES": lanes
        }  # fmt: skip
        enough = -(-device.current().enough_blocks // across)
        parts = min(enough, -(-self.rows // (lanes * AT_ONCE)))
        self.grid, self.block = (across, parts), groups * lanes

    def in_layout(self, tensor: Tensor) -> Tensor:
        """A blob as the kernels want it."""
        return self.ctx.in_layout(tensor, nhwc=True, dtype=self.dtype)

    def partial(self) -> Tensor:
        """Memory for two sums of each channel and part."""
        return self.ctx.temporary((2, self.grid[1], self.channels))

    def over(self, name: str, arguments: list[Any], **flags: Any) -> Run:
        """A step that launches a kernel over the matrix."""
        function = kernel("batch_norm", name, **self.macros, **flags)
        return launch(function, self.grid, [*arguments, self.rows], block=self.block)

    def gradients(
        self, a: ops.BatchNormBackward | ops.BatchNormPoolingBackward, dys: list[Tensor],
        mask: Tensor | None, others: list[Tensor | None], *, relu: bool, **flags: Any,
    ) -> Run:  # fmt: skip
        """A step over the gradients after the ReLU: their sums, or what becomes of them."""
        parts = [dys[0], dys[1] if len(dys) > 1 else None, mask]
        flags |= {"PARTS": len(dys), "RELU": relu, "POSITIVE": relu and mask is not None}
        return self.over(
            "gradients", [self.x, *parts, *a.channel_params.values(), *others], **flags
        )

    def finish_gradients(
        self,
        a: ops.BatchNormBackward | ops.BatchNormPoolingBackward,
        partial: Tensor,
        averages: Tensor,
    ) -> Run:
        """A step that makes the gradients of scale and bias, and averages, of sums over it."""
        added = [name in a.accumulates for name in ("dscale", "dbias")]
        share = a.x.shape[1] / a.x.count
        arguments = [partial, a.inv_std, a.dscale, a.dbias, averages, self.grid[1], share, *added]
        return self.finish("finish_gradients", arguments)

    def finish(self, name: str, arguments: list[Any]) -> Run:
        """A step that launches a kernel with 32 threads for each channel."""
        function = kernel("batch_norm", name, **self.macros)
        return launch(function, -(-self.channels // 32), arguments, block=(32, 32))


SUMS = 4
"""Of each channel and part of the pixels: of x - shift, and its square; the shift; how many."""


def choose_sums(ctx: Context, sums: Tensor, y: Tensor) -> None:
    """Let a convolution's sums of its output lie as `batch_norm_statistics` reads them."""
    matrix = _Matrix(ctx, y)
    assert matrix.x is y, "only a copy of it would have been summed"
    shape = SUMS, matrix.grid[1], matrix.channels
    sums.layout = Opaque("float32", shape, size=math.prod(shape))


def sum_outputs(ctx: Context) -> Run:
    """A step that makes these sums, after a convolution that has not."""
    matrix = _Matrix(ctx, ctx.call.y)
    return matrix.over("sum_squares", [matrix.x, ctx.call.sums])


@primitive("own")
def batch_norm_statistics(ctx: Context, a: ops.BatchNormStatistics) -> Run:
    for tensor in a.mean, a.inv_std, a.running_mean, a.running_variance, a.running_weight:
        choose_row_major(tensor)
    matrix, sums, steps = _Matrix(ctx, a.x), a.sums, []
    rows, parts = matrix.rows, matrix.grid[1]
    if sums is None:
        sums = ctx.temporary((SUMS, parts, matrix.channels))
        steps = [matrix.over("sum_squares", [matrix.x, sums])]
    past = [a.running_mean, a.running_variance, a.running_weight]
    numbers = [parts, 1 / rows, rows / max(rows - 1, 1), a.eps, a.momentum]
    finish = matrix.finish("finish_statistics", [sums, a.mean, a.inv_std, *past, *numbers])
    return sequence([*steps, finish])


@primitive("own")
def batch_norm(ctx: Context, a: ops.BatchNorm) -> Run:
    small = [a.mean, a.inv_std, a.scale, a.bias]
    for tensor in small:
        choose_row_major(tensor)
    matrix = _Matrix(ctx, a.x, a.addend, a.y, subsample=a.subsample)
    added = None if a.addend is None else matrix.in_layout(a.addend)
    arguments = [matrix.x, *small, added, matrix.in_layout(a.y)]
    return matrix.over("normalize", arguments, ADDEND=a.addend is not None, RELU=a.relu)


@primitive("own")
def batch_norm_backward(ctx: Context, a: ops.BatchNormBackward) -> Run:
    for tensor in a.mean, a.inv_std, a.scale, a.bias, a.dscale, a.dbias:
        choose_row_major(tensor)
    blobs = *a.dys, a.relu_output, a.dy, a.dx
    matrix, read = (
        _Matrix(ctx, a.x, *blobs, subsample=subsample) for subsample in (None, a.subsample)
    )
    first, *others = [matrix.in_layout(part) for part in a.dys]
    mask = matrix.in_layout(a.relu_output) if a.relu and a.relu_output is not None else None
    whole = a.dx if a.subsample and a.dy is None else a.dy
    dy = None if whole is None else matrix.in_layout(whole)
    averages = ctx.temporary((2, matrix.channels))
    steps: list[Run] = [fill_step(dy, 0)] if a.subsample and dy is not None else []

    def gradients(
        matrix: _Matrix, target: Tensor | None, partial: Tensor | None, **flags: Any
    ) -> Run:
        masked = a.relu and (dy is None or flags["SUMS"])
        operands = [averages, target, partial]
        return matrix.gradients(a, [first, *others], mask, operands, relu=masked, **flags)

    average = a.dx is not None and not a.constant
    if average or dy is not None or a.dscale is not None or a.dbias is not None:
        partial = read.partial()
        steps.append(gradients(read, dy, partial, SUMS=1, WHOLE=dy is not None, AVERAGES=0))
        steps.append(read.finish_gradients(a, partial, averages))
    if a.dx is not None:
        if dy is not None:  # it is their sum, after the ReLU
            first, others = dy, []
        dx = matrix.in_layout(a.dx)
        steps.append(gradients(matrix, dx, None, SUMS=0, WHOLE=0, AVERAGES=average))
    return sequence(steps)


@primitive("own")
def batch_norm_pooling(ctx: Context, a: ops.BatchNormPooling) -> Run:
    for tensor in a.channel_params.values():
        choose_row_major(tensor)
    ctx.choose_layouts(a.x, a.y, a.max_input)
    if a.index.layout_undecided:
        a.index.layout = Layout(a.index.shape, "uint8", True)
    normalized = [a.max_input, a.mean, a.inv_std, a.scale, a.bias]
    return over_images(ctx, a, a.x, a.y, a.index, relu=a.relu, normalized=normalized)


@primitive("own")
def batch_norm_pooling_backward(ctx: Context, a: ops.BatchNormPoolingBackward) -> Run:
    for tensor in *a.channel_params.values(), a.dscale, a.dbias:
        choose_row_major(tensor)
    ctx.choose_layouts(a.dx, a.dy)
    averages, steps = ctx.temporary((2, a.x.shape[1])), list[Run]()
    average = a.dx is not None and not a.constant
    if average or a.dscale is not None or a.dbias is not None:
        matrix = _Matrix(ctx, a.max_input, a.dy)  # elsewhere the gradient is 0
        dys, partial = [matrix.in_layout(a.dy)], matrix.partial()
        flags = {"SUMS": 1, "WHOLE": 0, "AVERAGES": 0}
        others = [averages, None, partial]
        steps = [
            matrix.gradients(a, dys, None, others, relu=a.relu, **flags),
            matrix.finish_gradients(a, partial, averages),
        ]
    if a.dx is not None:
        normalized = [a.x, a.mean, a.inv_std, a.scale, averages if average else None]
        tensors = a.dx, a.dy, a.index, None, None
        steps.append(over_images(ctx, a, *tensors, normalized=normalized))
    return sequence(steps)
