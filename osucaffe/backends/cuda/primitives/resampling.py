"""Owns unpooling and interpolation on the GPU."""

from __future__ import annotations

import math

import numpy as np

from ...tensor import Step, Tensor, sequence
from ..layout import C_TYPES, dtype_of, is_nhwc, strides
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


def _planes(small: Tensor, large: Tensor) -> list[np.int32]:
    """The elements of a plane of each."""
    return [np.int32(math.prod(tensor.shape[2:])) for tensor in (small, large)]


@primitive("own")
def unpooling(call: CudaCall, x: Tensor, index: Tensor, y: Tensor) -> Step:
    x, index, y = (call.row_major(tensor) for tensor in (x, index, y))
    owner = call.temporary(y.shape, "int32")
    sizes = _planes(x, y)
    count = np.int64(x.count)
    return sequence([
        launch(kernel("resampling", "no_owners"), blocks_for(y.count), [owner, np.int64(y.count)]),
        launch(kernel("resampling", "find_owners"), blocks_for(x.count),
               [index, owner, count, *sizes]),
        launch(kernel("resampling", "unpooling"), blocks_for(y.count),
               [x, owner, y, np.int64(y.count), *sizes]),
    ])  # fmt: skip


@primitive("own")
def unpooling_backward(call: CudaCall, dy: Tensor, index: Tensor, dx: Tensor) -> Step:
    dy, index, dx = (call.row_major(tensor) for tensor in (dy, index, dx))
    arguments = [dy, index, dx, np.int64(dx.count), *_planes(dx, dy)]
    return launch(kernel("resampling", "unpooling_backward"), blocks_for(dx.count), arguments)


def _interpolation(name: str, x: Tensor, y: Tensor, over: Tensor, arguments: list[Tensor]) -> Step:
    """A step that launches a kernel over the elements of an image; x is that before."""
    _, channels, height, width = x.shape
    macros = {
        "X_T": C_TYPES[dtype_of(x)],
        "Y_T": C_TYPES[dtype_of(y)],
        "C": channels,
        "H": height,
        "W": width,
        "OH": y.shape[2],
        "OW": y.shape[3],
        "CHANNELS_LAST": int(is_nhwc(over)),
    }
    for letter, tensor in (("X", x), ("Y", y)):
        macros |= {
            f"{letter}{axis}": f"{step}ll"
            for axis, step in zip("NCHW", strides(tensor), strict=True)
        }
    function = kernel("resampling", name, **macros)
    return launch(function, blocks_for(over.count), [*arguments, np.int64(over.count)])


@primitive("own")
def interpolation(call: CudaCall, x: Tensor, y: Tensor) -> Step:
    for tensor in x, y:
        call.backend.choose_layout(tensor)
    return _interpolation("interpolation", x, y, y, [x, y])


@primitive("own")
def interpolation_backward(call: CudaCall, dy: Tensor, dx: Tensor) -> Step:
    for tensor in dx, dy:
        call.backend.choose_layout(tensor)
    return _interpolation("interpolation_backward", dx, dy, dx, [dy, dx])
