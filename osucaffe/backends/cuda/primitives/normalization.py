"""Owns local response normalization and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...primitives.normalization import Lrn, LrnBackward, Neighbourhood, Softmax, SoftmaxBackward
from ...tensor import Step, Tensor
from ..layout import C_TYPES, ITEM_BYTES, Unused, dtype_of, is_channels_last
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch

SHARED_FLOATS = 8192
"""Of one block's rows in shared memory: small enough for several blocks on a processor."""


def _lrn_constants(a: Neighbourhood) -> list[np.float32]:
    return [np.float32(each) for each in (a.alpha, a.beta, a.k)[: 2 if a.within_channel else 3]]


def _across(a: Neighbourhood, *tensors: Tensor, relu: bool = False) -> Step:
    """A step for the region across channels: of (x, y), or backward of (x, dy, dx)."""
    x = tensors[0]
    backward = "_backward" if len(tensors) == 3 else ""
    channels = x.shape[1]
    macros = {"T": C_TYPES[dtype_of(x)], "SIZE": a.size, "RELU": int(relu)}
    constants = _lrn_constants(a)
    vector = 16 // ITEM_BYTES[dtype_of(x)]
    if channels % vector == 0 and a.size // 2 * 2 <= vector:
        count = x.count // vector
        function = kernel(
            "lrn", f"lrn_vectors{backward}", VEC=vector, GROUPS=channels // vector, **macros
        )
        return launch(function, blocks_for(count), [*tensors, np.int64(count), *constants])
    pixels, width = x.count // channels, channels + a.size // 2 * 2
    row_floats = 2 * width + channels if backward else width
    rows = max(1, min(32, SHARED_FLOATS // row_floats))
    arguments = [*tensors, np.int64(pixels), np.int32(channels), np.int32(rows), *constants]
    function = kernel("lrn", f"lrn{backward}", **macros)
    return launch(function, -(-pixels // rows), arguments, shared=4 * rows * row_floats)


def _within(a: Neighbourhood, *tensors: Tensor, relu: bool = False) -> Step:
    """A step for the region within a channel: of (x, y, note), or backward of (x, dy, note, dx)."""
    x = tensors[0]
    name = "lrn_within_backward" if len(tensors) == 4 else "lrn_within"
    function = kernel("lrn", name, T=C_TYPES[dtype_of(x)], SIZE=a.size, RELU=int(relu))
    shape = [np.int64(x.count), *(np.int32(x.shape[axis]) for axis in (2, 3, 1))]
    return launch(function, blocks_for(x.count), [*tensors, *shape, *_lrn_constants(a)])


@primitive("own")
def lrn(call: CudaCall, a: Lrn) -> Step:
    note = a.note
    call.choose_layouts(a.x, a.y)
    if note is not None:
        if not a.within_channel and note.flexible:
            note.layout = Unused("float32")  # to make the sums again is faster than to read them
        call.backend.choose_layout(note, "float32")
    y = call.in_layout(a.y, nhwc=True)
    x = call.in_layout(a.x, nhwc=True, dtype=dtype_of(y))
    if not a.within_channel:
        return _across(a, x, y)
    # The kernel writes the sums in any case.
    return _within(
        a, x, y, call.temporary(x.shape) if note is None else call.in_layout(note, nhwc=True)
    )


@primitive("own")
def lrn_backward(call: CudaCall, a: LrnBackward) -> Step:
    call.choose_layouts(a.x, a.dy, a.dx)
    relu = a.relu_output is not None
    assert a.relu_output in (None, a.x), "only the ReLU that made x can be fused"
    dx = call.in_layout(a.dx, nhwc=True)
    x, dy = (call.in_layout(each, nhwc=True, dtype=dtype_of(dx)) for each in (a.x, a.dy))
    if not a.within_channel:
        return _across(a, x, dy, dx, relu=relu)
    return _within(a, x, dy, call.in_layout(a.note, nhwc=True), dx, relu=relu)


class Rows:
    """Tensors of one shape as rows along an axis: `count` rows of `length` elements, `step` apart.

    tensors: in one memory order, in which the rows' elements are evenly spaced.
    """

    def __init__(self, call: CudaCall, axis: int, *tensors: Tensor) -> None:
        call.choose_layouts(*tensors)
        shape = tensors[0].shape
        nhwc = axis == 1 and any(is_channels_last(tensor) for tensor in tensors)
        self.tensors = [call.in_layout(tensor, nhwc=nhwc) for tensor in tensors]
        self.length = shape[axis]
        self.count = math.prod(shape) // max(1, self.length)
        self.step = 1 if nhwc else math.prod(shape[axis + 1 :])

    @property
    def shape(self) -> list[Any]:
        """The kernels' arguments that describe the rows."""
        return [np.int64(self.count), np.int32(self.length), np.int64(self.step)]

    def launch(
        self, name: str, types: dict[str, Tensor], arguments: list[Any], **macros: Any
    ) -> Step:
        """A step that launches a kernel of loss.cu, a warp for each row."""
        macros |= {f"{key}_T": C_TYPES[dtype_of(tensor)] for key, tensor in types.items()}
        function = kernel("loss", name, **macros)
        return launch(function, blocks_for(self.count * 32), arguments)


@primitive("own")
def softmax(call: CudaCall, a: Softmax) -> Step:
    rows = Rows(call, a.axis, a.x, a.y)
    x, y = rows.tensors
    return rows.launch("softmax", {"X": x, "Y": y}, [x, y, *rows.shape])


@primitive("own")
def softmax_backward(call: CudaCall, a: SoftmaxBackward) -> Step:
    rows = Rows(call, a.axis, a.y, a.dy, a.dx)
    y, dy, dx = rows.tensors
    types = {"X": y, "Y": dy, "DX": dx}
    return rows.launch("softmax_backward", types, [y, dy, dx, *rows.shape])
