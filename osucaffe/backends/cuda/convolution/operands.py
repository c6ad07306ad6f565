"""Owns the operands of convolutions: their layouts, and the passes that follow a convolution."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...tensor import Shape, Step, Tensor
from ..call import CudaCall
from ..layout import C_TYPES, ITEM_BYTES, Layout, dtype_of, is_nhwc, with_layout
from ..passes.convert import convert
from ..passes.elementwise import finish_gradient
from ..passes.rows import sum_rows
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


def choose_weight_layout(tensor: Tensor) -> None:
    """Filters lie in float32 with the channels last, where that is open."""
    root = tensor.root
    if root.flexible:
        root.layout = Layout(root.shape, "float32", True)


def choose_row_major(tensor: Tensor | None) -> None:
    """It lies row-major in float32, where that is open: a bias."""
    if tensor is not None:
        tensor.root.flexible = False


def low_precision_weights(call: CudaCall, w: Tensor) -> Tensor:
    """The filters in the type of the precision, with the channels last."""
    dtype = call.backend.dtype
    if dtype != dtype_of(w) and w.base is None and is_nhwc(w):
        return call.low_precision(w)
    return call.in_layout(w, nhwc=True, dtype=dtype)


def channels_last_blob(call: CudaCall, tensor: Tensor) -> Tensor:
    """A blob in the type of the precision, with the channels last."""
    return call.in_layout(tensor, nhwc=True, dtype=call.backend.dtype)


def temporary(call: CudaCall, shape: Shape) -> Tensor:
    """Scratch memory in the type of the precision, with the channels last."""
    return with_layout(call.temporary(shape), Layout(shape, call.backend.dtype, True))


def operation(call: CudaCall) -> str:
    """What a call computes, in cuDNN's words: "forward" the outputs, "data" the gradient of the
    images, "filter" that of the filters."""
    written = {"y": "forward", "dx": "data", "dw": "filter"}
    return next(name for tensor, name in written.items() if tensor in call.writes)


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
    def of(cls, call: CudaCall, *, x_as_stored: bool = False) -> Operands:
        """Those of a call. x_as_stored: x is the call's own, in any layout and type."""
        x, w, y = map(call.needed, "xwy" if "y" in call.writes else ("dy", "w", "dx"))
        slope = call.settings.get("relu")

        def blob(name: str) -> Tensor | None:
            return None if call[name] is None else channels_last_blob(call, call.needed(name))

        return cls(
            x if x_as_stored else channels_last_blob(call, x),
            low_precision_weights(call, w),
            call["b"],
            blob("addend"),
            blob("relu_output"),
            channels_last_blob(call, y),
            1.0 if slope is None else slope,
        )

    def epilogue(self) -> list[Step]:
        """The bias and the ReLU, or the addend and the mask, as a pass of its own over y."""
        if self.addend is not None or self.relu_output is not None:
            return [finish_gradient(self.y, self.addend, self.relu_output)]
        if self.b is None and self.slope == 1:
            return []
        return [bias_step(self.y, self.b, self.slope, self.y.shape[1])]


def bias_gradient(call: CudaCall) -> Step:
    """The gradient of the biases: the sums over all pixels."""
    maps, db = channels_last_blob(call, call.needed("dy")), call.needed("db")
    rows = maps.size // maps.shape[1]
    return sum_rows(call, maps, db, rows, accumulate="db" in call.accumulates)


def bias_gradients(call: CudaCall) -> list[Step]:
    """What follows the gradient of the filters: that of the biases, if there are any."""
    return [] if call["db"] is None else [bias_gradient(call)]


def bind(call: CudaCall, *, fused: bool = False) -> tuple[dict[str, Tensor], list[Step]]:
    """The operands of a convolution or of one of its gradients by cuDNN's names (see
    `cudnn_graph.Convolution`), channels last and in the precision's type; and the steps that follow
    what computes from them.

    fused: the bias and the ReLU, or the mask, are computed with it.
    """
    if operation(call) == "filter":
        dw, accumulate = call.needed("dw"), "dw" in call.accumulates
        x, y = (channels_last_blob(call, call.needed(name)) for name in ("x", "dy"))
        behind = bias_gradients(call)
        if is_nhwc(dw) and dtype_of(dw) == call.backend.dtype and not accumulate:
            return {"x": x, "y": y, "w": dw}, behind
        part = temporary(call, dw.shape)  # cuDNN neither widens nor adds
        return {"x": x, "y": y, "w": part}, [convert(part, dw, accumulate=accumulate), *behind]
    given = Operands.of(call)
    x, y = (given.x, given.y) if "y" in call.writes else (given.y, given.x)
    tensors = {"x": x, "w": given.w, "y": y}
    if not fused:
        return tensors, given.epilogue()
    more = {"b": given.b, "mask": given.relu_output}
    return tensors | {name: each for name, each in more.items() if each is not None}, []


def bias_step(
    y: Tensor,
    b: Tensor | None,
    relu: float | None,
    channels: int,
    part: Tensor | None = None,
    first: int = 0,
) -> Step:
    """A step that adds the bias and applies the ReLU; channels vary fastest in y.

    part: what they go to: those channels of y from `first` on, packed; None: all of them, in place.
    """
    x, width = (y, channels) if part is None else (part, part.shape[1])
    vector = math.gcd(channels, width, first, 16 // ITEM_BYTES[dtype_of(y)])
    function = kernel("convolution", "add_bias", T=C_TYPES[dtype_of(y)], VEC=vector)
    count = x.size // vector
    places = [np.int32(each // vector) for each in (width, channels, first)]
    slope = np.float32(1.0 if relu is None else relu)
    return launch(function, blocks_for(count), [x, y, b, np.int64(count), *places, slope])
