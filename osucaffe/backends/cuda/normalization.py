"""Owns local response normalization and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..tensor import Step, Tensor
from .kernels import blocks_for, kernel, launch
from .layout import C_TYPES, Unused, dtype_of, is_channels_last
from .registry import CudaCall, primitive

SHARED_FLOATS = 8192
"""Of one block's rows in shared memory: small enough for several blocks on a processor."""


def _rows(channels: int, copies: int) -> int:
    """How many pixels a block holds."""
    return max(1, min(32, SHARED_FLOATS // copies // channels))


def _lrn_constants(settings: dict[str, Any]) -> list[np.float32]:
    names = ["alpha", "beta"] + ["k"] * (not settings["within_channel"])
    return [np.float32(settings[name]) for name in names]


@primitive("own")
def lrn(call: CudaCall, x: Tensor, y: Tensor, note: Tensor, **settings: Any) -> Step:
    within = settings["within_channel"]
    call.backend.settle(x)
    call.backend.settle(y)
    if not within and note.flexible:
        note.layout = Unused("float32")  # the sums are made again: that is faster than to read them
    call.backend.settle(note, "float32")
    y = call.held(y, nhwc=True)
    x = call.held(x, nhwc=True, dtype=dtype_of(y))
    size, constants = settings["size"], _lrn_constants(settings)
    macros = {"T": C_TYPES[dtype_of(y)], "SIZE": size, "RELU": 0}
    if within:
        note = call.held(note, nhwc=True)
        function = kernel("lrn", "lrn_within", **macros)
        shape = [np.int64(x.count), *(np.int32(x.shape[axis]) for axis in (2, 3, 1))]
        return launch(function, blocks_for(x.count), [x, y, note, *shape, *constants])
    channels, pixels = x.shape[1], x.count // x.shape[1]
    rows = _rows(channels + size, 1)
    arguments = [x, y, np.int64(pixels), np.int32(channels), np.int32(rows), *constants]
    shared = 4 * rows * (channels + size // 2 * 2)
    return launch(kernel("lrn", "lrn", **macros), -(-pixels // rows), arguments, shared=shared)


@primitive("own")
def lrn_backward(
    call: CudaCall, x: Tensor, y: Tensor, dy: Tensor, note: Tensor, dx: Tensor, **settings: Any
) -> Step:
    for tensor in x, dy, dx:
        call.backend.settle(tensor)
    dx = call.held(dx, nhwc=True)
    x = call.held(x, nhwc=True, dtype=dtype_of(dx))
    dy = call.held(dy, nhwc=True, dtype=dtype_of(dx))
    size, constants = settings["size"], _lrn_constants(settings)
    macros = {"T": C_TYPES[dtype_of(dx)], "SIZE": size, "RELU": 0}
    if settings["within_channel"]:
        note = call.held(note, nhwc=True)
        function = kernel("lrn", "lrn_within_backward", **macros)
        shape = [np.int64(x.count), *(np.int32(x.shape[axis]) for axis in (2, 3, 1))]
        return launch(function, blocks_for(x.count), [x, dy, note, dx, *shape, *constants])
    channels, pixels = x.shape[1], x.count // x.shape[1]
    rows = _rows(channels + size, 3)
    arguments = [x, dy, dx, np.int64(pixels), np.int32(channels), np.int32(rows), *constants]
    shared = 4 * rows * (2 * (channels + size // 2 * 2) + channels)
    function = kernel("lrn", "lrn_backward", **macros)
    return launch(function, -(-pixels // rows), arguments, shared=shared)


class Rows:
    """Tensors of one shape as rows along an axis: `count` rows of `length` elements, `step` apart.

    tensors: in one memory order, in which the rows' elements are evenly spaced.
    """

    def __init__(self, call: CudaCall, axis: int, *tensors: Tensor) -> None:
        for tensor in tensors:
            call.backend.settle(tensor)
        shape = tensors[0].shape
        axis %= len(shape)
        nhwc = axis == 1 and any(is_channels_last(tensor) for tensor in tensors)
        self.tensors = [call.held(tensor, nhwc=nhwc) for tensor in tensors]
        self.length = shape[axis]
        self.count = math.prod(shape) // max(1, self.length)
        self.step = 1 if nhwc else math.prod(shape[axis + 1 :])

    @property
    def shape(self) -> list[Any]:
        """The kernels' arguments that describe the rows."""
        return [np.int64(self.count), np.int32(self.length), np.int64(self.step)]

    def launch(self, name: str, types: dict[str, Tensor], arguments: list[Any]) -> Step:
        """A step that launches a kernel of loss.cu, a warp for each row."""
        macros = {f"{key}_T": C_TYPES[dtype_of(tensor)] for key, tensor in types.items()}
        return launch(kernel("loss", name, **macros), blocks_for(self.count * 32), arguments)


@primitive("own")
def softmax(call: CudaCall, x: Tensor, y: Tensor, *, axis: int) -> Step:
    rows = Rows(call, axis, x, y)
    x, y = rows.tensors
    return rows.launch("softmax", {"X": x, "Y": y}, [x, y, *rows.shape])


@primitive("own")
def softmax_backward(call: CudaCall, y: Tensor, dy: Tensor, dx: Tensor, *, axis: int) -> Step:
    rows = Rows(call, axis, y, dy, dx)
    y, dy, dx = rows.tensors
    types = {"X": y, "Y": dy, "DX": dx}
    return rows.launch("softmax_backward", types, [y, dy, dx, *rows.shape])
