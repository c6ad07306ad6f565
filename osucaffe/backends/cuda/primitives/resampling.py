"""Owns unpooling and interpolation on the GPU."""

from __future__ import annotations

import math

import numpy as np

from ...primitives.pooling import Interpolation, InterpolationBackward, Unpooling, UnpoolingBackward
from ...tensor import Step, Tensor, sequence
from ..layout import C_TYPES, dtype_of, is_nhwc, strides
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


def _planes(small: Tensor, large: Tensor) -> list[np.int32]:
    """The elements of a plane of each."""
    return [np.int32(math.prod(tensor.shape[2:])) for tensor in (small, large)]


@primitive("plain")
def unpooling(call: CudaCall, a: Unpooling) -> Step:
    owner = call.temporary(a.y.shape, "int32")
    inputs, outputs, sizes = np.int64(a.x.count), np.int64(a.y.count), _planes(a.x, a.y)

    return sequence([
        launch(kernel("resampling", "no_owners"), blocks_for(a.y.count), [owner, outputs]),
        launch(kernel("resampling", "find_owners"), blocks_for(a.x.count),
               [a.index, owner, inputs, *sizes]),
        launch(kernel("resampling", "unpooling"), blocks_for(a.y.count),
               [a.x, owner, a.y, outputs, *sizes]),
    ])  # fmt: skip


@primitive("plain")
def unpooling_backward(call: CudaCall, a: UnpoolingBackward) -> Step:
    arguments = [a.dy, a.index, a.dx, np.int64(a.dx.count), *_planes(a.dx, a.dy)]
    return launch(kernel("resampling", "unpooling_backward"), blocks_for(a.dx.count), arguments)


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
def interpolation(call: CudaCall, a: Interpolation) -> Step:
    call.choose_layouts(a.x, a.y)
    return _interpolation("interpolation", a.x, a.y, a.y, [a.x, a.y])


@primitive("own")
def interpolation_backward(call: CudaCall, a: InterpolationBackward) -> Step:
    call.choose_layouts(a.dx, a.dy)
    return _interpolation("interpolation_backward", a.dx, a.dy, a.dx, [a.dy, a.dx])
