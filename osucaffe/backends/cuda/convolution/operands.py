"""The operands of convolutions: their layouts, and the passes that follow a convolution."""

from __future__ import annotations

from typing import NamedTuple

from ...primitives import products as ops
from ...tensor import Run, Shape, Tensor
from ..call import Context
from ..layout import Layout, dtype_of, is_nhwc, with_layout
from ..passes.convert import convert
from ..passes.elementwise import add_and_mask, bias_step
from ..passes.rows import sum_rows


def choose_weight_layout(tensor: Tensor) -> None:
    """Filters lie in float32 with the channels last, where that is open."""
    root = tensor.root
    if root.flexible:
        root.layout = Layout(root.shape, "float32", True)


def choose_row_major(tensor: Tensor | None) -> None:
    """It lies row-major in float32, where that is open: a bias."""
    if tensor is not None:
        tensor.root.flexible = False


def low_precision_weights(ctx: Context, w: Tensor) -> Tensor:
    """The filters in the type of the precision, with the channels last."""
    dtype = ctx.backend.dtype
    if dtype != dtype_of(w) and w.base is None and is_nhwc(w):
        return ctx.low_precision(w)
    return ctx.in_layout(w, nhwc=True, dtype=dtype)


def channels_last_blob(ctx: Context, tensor: Tensor) -> Tensor:
    """A blob in the type of the precision, with the channels last."""
    return ctx.in_layout(tensor, nhwc=True, dtype=ctx.backend.dtype)


def temporary(ctx: Context, shape: Shape) -> Tensor:
    """Scratch memory in the type of the precision, with the channels last."""
    return with_layout(ctx.temporary(shape), Layout(shape, ctx.backend.dtype, True))


_OPERATIONS = {
    ops.Convolution: "forward",
    ops.ConvolutionBackwardData: "data",
    ops.ConvolutionBackwardFilter: "filter",
}


def operation(ctx: Context) -> str:
    """What a call computes, in cuDNN's words: "forward" the outputs, "data" the gradient of the
    images, "filter" that of the filters."""
    return _OPERATIONS[type(ctx.call)]


class Operands(NamedTuple):
    """Those of a call for outputs, or for the gradient of images, as the correlation that it is:
    y = x correlated with w, plus b, then y or slope * y where it is negative.

    All have the channels last. The addend is added to y; then, where relu_output is not positive,
    y becomes 0: the backward pass of the ReLU that made the images.
    """

    x: Tensor
    w: Tensor
    b: Tensor | None
    addend: Tensor | None
    relu_output: Tensor | None
    y: Tensor
    slope: float

    @classmethod
    def of(cls, ctx: Context, *, x_as_stored: bool = False) -> Operands:
        """Those of a call. x_as_stored: x is the call's own, in any layout and type."""
        a: ops.Convolution | ops.ConvolutionBackwardData = ctx.call
        if isinstance(a, ops.Convolution):
            x, b, relu_output, y, slope = a.x, a.b, None, a.y, a.relu
        else:
            x, b, relu_output, y, slope = a.dy, None, a.relu_output, a.dx, None

        def blob(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else channels_last_blob(ctx, tensor)

        return cls(
            x if x_as_stored else channels_last_blob(ctx, x),
            low_precision_weights(ctx, a.w),
            b,
            blob(a.addend),
            blob(relu_output),
            channels_last_blob(ctx, y),
            1.0 if slope is None else slope,
        )

    def epilogue(self) -> list[Run]:
        """The bias and the ReLU, or the addend and the mask, as a pass of its own over y."""
        if self.addend is not None or self.relu_output is not None:
            return [add_and_mask(self.y, self.addend, self.relu_output)]
        if self.b is None and self.slope == 1:
            return []
        return [bias_step(self.y, self.b, self.slope, self.y.shape[1])]


def bias_gradient(ctx: Context) -> Run:
    """The gradient of the biases: the sums over all pixels."""
    maps = channels_last_blob(ctx, ctx.call.dy)
    rows = maps.size // maps.shape[1]
    return sum_rows(ctx, maps, ctx.call.db, rows, accumulate="db" in ctx.call.accumulates)


def bias_gradients(ctx: Context) -> list[Run]:
    """What follows the gradient of the filters: that of the biases, if there are any."""
    return [] if ctx.call.db is None else [bias_gradient(ctx)]


def bind(ctx: Context, *, fused: bool = False) -> tuple[dict[str, Tensor], list[Run]]:
    """The operands of a convolution or of one of its gradients by cuDNN's names (see
    `cudnn_graph.Convolution`), channels last and in the precision's type; and the steps that follow
    what computes from them.

    fused: the bias and the ReLU are computed with it.
    """
    if operation(ctx) == "filter":
        dw, accumulate = ctx.call.dw, "dw" in ctx.call.accumulates
        x, y = channels_last_blob(ctx, ctx.call.x), channels_last_blob(ctx, ctx.call.dy)
        behind = bias_gradients(ctx)
        if is_nhwc(dw) and dtype_of(dw) == ctx.backend.dtype and not accumulate:
            return {"x": x, "y": y, "w": dw}, behind
        part = temporary(ctx, dw.shape)  # cuDNN neither widens nor adds
        return {"x": x, "y": y, "w": part}, [convert(part, dw, accumulate=accumulate), *behind]
    given = Operands.of(ctx)
    x, y = (given.x, given.y) if operation(ctx) == "forward" else (given.y, given.x)
    tensors = {"x": x, "w": given.w, "y": y}
    if not fused:
        return tensors, given.epilogue()
    return tensors if given.b is None else tensors | {"b": given.b}, []
