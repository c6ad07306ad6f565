"""Owns local response normalization and softmax by NumPy."""

from __future__ import annotations

import math

import numpy as np

from ...primitives.normalization import Lrn, LrnBackward, Neighbourhood, Softmax, SoftmaxBackward
from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive
from ..windows import Windows


class _Neighbours:
    """Sums over the neighbours of each element of an image: of `size` channels or pixels a side.

    scale is what the sum of squares is multiplied with: alpha / the number of neighbours.
    """

    def __init__(self, call: CpuCall, x: Tensor, a: Neighbourhood) -> None:
        size, within_channel = a.size, a.within_channel
        channels, *extents = x.shape[1:]
        spatial = len(extents)
        kernel = [1] + [size] * spatial if within_channel else [size] + [1] * spatial
        pad = [(extent - 1) // 2 for extent in kernel]
        image = (channels, *extents)
        self.windows = Windows(image, image, kernel, [1] * len(kernel), pad)
        self.scale = a.alpha / self.windows.area
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
def lrn(call: CpuCall, a: Lrn) -> Step:
    neighbours = _Neighbours(call, a.x, a)
    offset = 1.0 if a.within_channel else a.k
    sums = call.temporary(a.x.shape) if a.note is None else a.note

    def step() -> None:
        neighbours.clear()
        for image, out, s in zip(a.x.array, a.y.array, sums.array, strict=True):
            np.square(image, out=neighbours.source)
            neighbours.sum(s)
            s *= neighbours.scale
            s += offset
            np.power(s, -a.beta, out=out)
            out *= image

    return step


@primitive()
def lrn_backward(call: CpuCall, a: LrnBackward) -> Step:
    # dx = dy s^-beta - 2 beta scale x * (sum over the neighbours of dy y / s)
    neighbours = _Neighbours(call, a.x, a)
    factor = -2 * a.beta * neighbours.scale
    part = call.temporary(a.x.shape[1:])

    def step() -> None:
        neighbours.clear()
        arrays = (a.x.array, a.y.array, a.dy.array, a.note.array, a.dx.array)
        for image, out, gradient, s, result in zip(*arrays, strict=True):
            np.multiply(gradient, out, out=part.array)
            np.divide(part.array, s, out=neighbours.source)
            neighbours.sum(part.array)
            part.array *= image
            part.array *= factor
            np.power(s, -a.beta, out=result)
            result *= gradient
            result += part.array

    return step


def planes(tensor: Tensor, axis: int) -> np.ndarray:
    """The tensor's array as (outer, extent of axis, inner)."""
    outer, inner = math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis + 1 :])
    array: np.ndarray = tensor.array.reshape(outer, tensor.shape[axis], inner)
    return array


@primitive()
def softmax(call: CpuCall, a: Softmax) -> Step:
    axis = a.axis
    line = call.temporary((math.prod(a.x.shape[:axis]), 1, math.prod(a.x.shape[axis + 1 :])))

    def step() -> None:
        source, out = planes(a.x, axis), planes(a.y, axis)
        np.max(source, axis=1, keepdims=True, out=line.array)
        np.subtract(source, line.array, out=out)
        np.exp(out, out=out)
        np.sum(out, axis=1, keepdims=True, out=line.array)
        np.divide(out, line.array, out=out)

    return step


@primitive()
def softmax_backward(call: CpuCall, a: SoftmaxBackward) -> Step:
    axis = a.axis
    product = call.temporary(a.y.shape)
    line = call.temporary((math.prod(a.y.shape[:axis]), 1, math.prod(a.y.shape[axis + 1 :])))

    def step() -> None:
        np.multiply(a.y.array, a.dy.array, out=product.array)
        np.sum(planes(product, axis), axis=1, keepdims=True, out=line.array)
        np.subtract(planes(a.dy, axis), line.array, out=planes(a.dx, axis))
        np.multiply(a.dx.array, a.y.array, out=a.dx.array)

    return step
