"""Owns the layouts of the operands of convolutions, and the passes that follow a convolution."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...tensor import Shape, Step, Tensor
from ..call import CudaCall
from ..layout import C_TYPES, ITEM_BYTES, Layout, dtype_of, is_nhwc, with_layout
from ..passes.convert import convert
from ..passes.elementwise import mask_step
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
    if dtype != "float32" and w.base is None and is_nhwc(w):
        return call.low_precision(w)
    return call.in_layout(w, nhwc=True, dtype=dtype)


def channels_last_blob(call: CudaCall, tensor: Tensor) -> Tensor:
    """A blob in the type of the precision, with the channels last."""
    return call.in_layout(tensor, nhwc=True, dtype=call.backend.dtype)


def temporary(call: CudaCall, shape: Shape) -> Tensor:
    """Scratch memory in the type of the precision, with the channels last."""
    return with_layout(call.temporary(shape), Layout(shape, call.backend.dtype, True))


def mask_of(call: CudaCall) -> Tensor | None:
    """What masks the gradient of the images: the output of a ReLU whose backward pass is fused."""
    relu_output = call["relu_output"]
    return None if relu_output is None else channels_last_blob(call, relu_output)


def relu_slope(call: CudaCall) -> float:
    """What a call's outputs are multiplied by where they are negative; 1 where it has no ReLU."""
    slope: float | None = call.settings.get("relu")
    return 1.0 if slope is None else slope


class Correlated(NamedTuple):
    """What computes the outputs of a call, or the gradient of its images: y = x correlated with w,
    plus b, then y or slope * y where it is negative.

    y has the channels last, and so has relu_output: where it is not positive, y becomes 0.
    """

    x: Tensor
    w: Tensor
    b: Tensor | None
    relu_output: Tensor | None
    y: Tensor
    slope: float

    @classmethod
    def of(cls, call: CudaCall) -> Correlated:
        """That of a call, its images and filters as they lie."""
        if "y" in call.writes:
            x, w, y = (call.needed(name) for name in "xwy")
            return cls(x, w, call["b"], None, channels_last_blob(call, y), relu_slope(call))
        x, w, y = (call.needed(name) for name in ("dy", "w", "dx"))
        return cls(x, w, None, mask_of(call), channels_last_blob(call, y), 1.0)

    def channels_last(self, call: CudaCall) -> Correlated:
        """The same, all with the channels last and in the type of the precision."""
        return self._replace(
            x=channels_last_blob(call, self.x), w=low_precision_weights(call, self.w)
        )


def bias_gradient(call: CudaCall) -> Step:
    """The gradient of the biases: the sums over all pixels."""
    maps, db = channels_last_blob(call, call.needed("dy")), call.needed("db")
    rows = maps.size // maps.shape[1]
    return sum_rows(call, maps, db, rows, accumulate="db" in call.accumulates)


def bind(
    call: CudaCall, operation: str, *, fused: bool = False
) -> tuple[dict[str, Tensor], list[Step]]:
    """The operands of a convolution or of one of its gradients by cuDNN's names (see
    `cudnn_graph.Convolution`), channels last and in the precision's type; and the steps behind what
    computes from them.

    fused: the bias and the ReLU, or the mask, are computed with it.
    """
    if operation == "filter":
        dw = call.needed("dw")
        x, y = (channels_last_blob(call, call.needed(name)) for name in ("x", "dy"))
        behind = _bias_gradients(call)
        accumulate = "dw" in call.accumulates
        if is_nhwc(dw) and call.backend.dtype == "float32" and not accumulate:
            return {"x": x, "y": y, "w": dw}, behind
        part = temporary(call, dw.shape)  # cuDNN neither widens nor adds
        return {"x": x, "y": y, "w": part}, [convert(part, dw, accumulate=accumulate), *behind]
    names = ("x", "y") if operation == "forward" else ("dx", "dy")
    x, y = (channels_last_blob(call, call.needed(name)) for name in names)
    tensors = {"x": x, "w": low_precision_weights(call, call.needed("w")), "y": y}
    if operation == "forward":
        if fused:
            b = call["b"]
            return tensors | ({} if b is None else {"b": b}), []
        return tensors, _bias_and_relu(call, y)
    mask = mask_of(call)
    if mask is None:
        return tensors, []
    return (tensors | {"mask": mask}, []) if fused else (tensors, [mask_step(x, mask)])


def bind_blobs(call: CudaCall, operation: str) -> tuple[dict[str, Tensor], list[Step]]:
    """The same for what takes images as they lie and filters, or their gradient, in float32: x and
    y alone. "forward" or "filter"."""
    y = channels_last_blob(call, call.needed("dy" if operation == "filter" else "y"))
    behind = _bias_and_relu(call, y) if operation == "forward" else _bias_gradients(call)
    return {"x": call.needed("x"), "y": y}, behind


def _bias_gradients(call: CudaCall) -> list[Step]:
    return [] if call["db"] is None else [bias_gradient(call)]


def _bias_and_relu(call: CudaCall, y: Tensor) -> list[Step]:
    b, relu = call["b"], call.settings.get("relu")
    return [] if b is None and relu is None else [bias_step(y, b, relu, y.shape[1])]


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
