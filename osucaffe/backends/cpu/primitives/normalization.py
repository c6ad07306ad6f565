"""Owns local response normalization and softmax by NumPy."""

from __future__ import annotations

import math

import numpy as np

from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive
from ..windows import Windows


class _Neighbourhood:
    """Sums over the neighbours of each element of an image: of `size` channels or pixels a side.

    scale is what the sum of squares is multiplied with: alpha / the number of neighbours.
    """

    def __init__(
        self, call: CpuCall, x: Tensor, size: int, alpha: float, within_channel: bool
    ) -> None:
        channels, *extents = x.shape[1:]
        spatial = len(extents)
        kernel = [1] + [size] * spatial if within_channel else [size] + [1] * spatial
        pad = [(extent - 1) // 2 for extent in kernel]
        image = (channels, *extents)
        self.windows = Windows(image, image, kernel, [1] * len(kernel), pad)
        self.scale = alpha / self.windows.area
        self.padded = call.temporary(self.windows.padded)

    def clear(self) -> None:
        """Zero the padding (scratch holds anything before a step)."""
        self.padded.array.fill(0)

    @property
    def source(self) -> np.ndarray:
        """Where to write the values to be summed."""
        interior: np.ndarray = self.padded.array[self.windows.interior]
        return interior

    def sum(self, out: np.ndarray) -> None:
        """out = the sum of the neighbours of each element of `source`."""
        out.fill(0)
        for tap in self.windows.taps:
            out += self.padded.array[tap]


@primitive()
def lrn(
    call: CpuCall,
    x: Tensor,
    y: Tensor,
    note: Tensor | None,
    *,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    within_channel: bool,
) -> Step:
    neighbourhood = _Neighbourhood(call, x, size, alpha, within_channel)
    offset = 1.0 if within_channel else k
    sums = call.temporary(x.shape) if note is None else note

    def step() -> None:
        neighbourhood.clear()
        for image, out, s in zip(x.array, y.array, sums.array, strict=True):
            np.square(image, out=neighbourhood.source)
            neighbourhood.sum(s)
            s *= neighbourhood.scale
            s += offset
            np.power(s, -beta, out=out)
            out *= image

    return step


@primitive()
def lrn_backward(
    call: CpuCall,
    x: Tensor,
    y: Tensor,
    dy: Tensor,
    note: Tensor,
    dx: Tensor,
    *,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    within_channel: bool,
) -> Step:
    # dx = dy s^-beta - 2 beta scale x * (sum over the neighbours of dy y / s)
    neighbourhood = _Neighbourhood(call, x, size, alpha, within_channel)
    factor = -2 * beta * neighbourhood.scale
    part = call.temporary(x.shape[1:])

    def step() -> None:
        neighbourhood.clear()
        arrays = (x.array, y.array, dy.array, note.array, dx.array)
        for image, out, gradient, s, result in zip(*arrays, strict=True):
            np.multiply(gradient, out, out=part.array)
            np.divide(part.array, s, out=neighbourhood.source)
            neighbourhood.sum(part.array)
            part.array *= image
            part.array *= factor
            np.power(s, -beta, out=result)
            result *= gradient
            result += part.array

    return step


def planes(tensor: Tensor, axis: int) -> np.ndarray:
    """The tensor's array as (outer, extent of axis, inner)."""
    axis %= len(tensor.shape)
    outer, inner = math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis + 1 :])
    array: np.ndarray = tensor.array.reshape(outer, tensor.shape[axis], inner)
    return array


@primitive()
def softmax(call: CpuCall, x: Tensor, y: Tensor, *, axis: int) -> Step:
    axis %= len(x.shape)
    line = call.temporary((math.prod(x.shape[:axis]), 1, math.prod(x.shape[axis + 1 :])))

    def step() -> None:
        source, out = planes(x, axis), planes(y, axis)
        np.max(source, axis=1, keepdims=True, out=line.array)
        np.subtract(source, line.array, out=out)
        np.exp(out, out=out)
        np.sum(out, axis=1, keepdims=True, out=line.array)
        np.divide(out, line.array, out=out)

    return step


@primitive()
def softmax_backward(call: CpuCall, y: Tensor, dy: Tensor, dx: Tensor, *, axis: int) -> Step:
    axis %= len(y.shape)
    product = call.temporary(y.shape)
    line = call.temporary((math.prod(y.shape[:axis]), 1, math.prod(y.shape[axis + 1 :])))

    def step() -> None:
        np.multiply(y.array, dy.array, out=product.array)
        np.sum(planes(product, axis), axis=1, keepdims=True, out=line.array)
        np.subtract(planes(dy, axis), line.array, out=planes(dx, axis))
        np.multiply(dx.array, y.array, out=dx.array)

    return step
