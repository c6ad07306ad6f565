"""Owns convolution and the inner product by NumPy: matrix products, for a convolution one image at
a time, unfolded into columns."""

from __future__ import annotations

import math

import numpy as np

from ...primitives import products as ops
from ...tensor import Step, Tensor, sequence
from ..registry import CpuCall, direct, primitive
from ..windows import Windows
from .formulas import formula, matrix, relu_formula
from .pooling import PaddedImage


class _Unfolding(PaddedImage):
    """Copies an image (channels, *extents) into columns (channels, *kernel, *out), and back."""

    def unfold(self, image: np.ndarray, columns: np.ndarray) -> None:
        """Write the windows of an image into columns, in a padding of zeros."""
        np.copyto(columns, self.windows.unfold(self.pad(image)))

    def fold(self, columns: np.ndarray, image: np.ndarray) -> None:
        """image = the sum of the columns where they came from."""
        target = self.target(image)
        pieces = columns.reshape(len(target), self.windows.area, *self.windows.out)
        for tap, place in enumerate(self.windows.taps):
            target[place] += pieces[:, tap]
        self.finish(image)


class _Geometry:
    """The shapes of one convolution as a matrix product for each group, and its scratch."""

    def __init__(
        self, call: CpuCall, x: Tensor, w: Tensor, y: Tensor, a: ops.ConvolutionWindow
    ) -> None:
        channels, group = x.shape[1], a.group
        windows = Windows(x.shape[2:], y.shape[2:], w.shape[2:], a.stride, a.pad, a.dilation)
        places = math.prod(y.shape[2:])
        self._weights = group, y.shape[1] // group, channels // group * windows.area
        self._maps = group, y.shape[1] // group, places
        self._matrix = group, channels // group * windows.area, places
        # A 1x1 kernel that visits every pixel needs no columns: the image is already a matrix.
        self._direct = windows.area == 1 and windows.plain and x.shape[2:] == y.shape[2:]
        if not self._direct:
            self._unfolding = _Unfolding(call, channels, windows)
            self._columns = call.temporary((channels, *windows.kernel, *y.shape[2:]))

    def clear(self) -> None:
        """Zero the padding: before the first `unfold` of a step."""
        if not self._direct:
            self._unfolding.surround(0)

    def unfold(self, image: np.ndarray) -> np.ndarray:
        """The columns of an image: (group, rows, places)."""
        if not self._direct:
            self._unfolding.unfold(image, self._columns.array)
        return self.columns(image)

    def columns(self, image: np.ndarray) -> np.ndarray:
        """Where to write the columns that `fold` adds up: (group, rows, places)."""
        columns: np.ndarray = image if self._direct else self._columns.array
        return columns.reshape(self._matrix)

    def fold(self, image: np.ndarray) -> None:
        """image = the sum of the columns where they came from."""
        if not self._direct:
            self._unfolding.fold(self._columns.array, image)

    def weights(self, w: Tensor) -> np.ndarray:
        """Weights as (group, outputs, rows)."""
        weights: np.ndarray = w.array.reshape(self._weights)
        return weights

    def maps(self, image: np.ndarray) -> np.ndarray:
        """One image of the output as (group, outputs, places)."""
        return image.reshape(self._maps)


@primitive()
def convolution(call: CpuCall, a: ops.Convolution) -> Step:
    geometry = _Geometry(call, a.x, a.w, a.y, a)
    activate = None if a.relu is None else formula(call, relu_formula(a.relu), {"x": a.y, "y": a.y})
    made = a.y if a.addend is None else call.temporary(a.y.shape)

    def step() -> None:
        geometry.clear()
        weights = geometry.weights(a.w)
        for image, out in zip(a.x.array, made.array, strict=True):
            np.matmul(weights, geometry.unfold(image), out=geometry.maps(out))
        if made is not a.y:
            np.add(a.y.array, made.array, out=a.y.array)
        if a.b is not None:
            np.add(a.y.array, a.b.array.reshape(-1, *[1] * (len(a.y.shape) - 2)), out=a.y.array)
        if activate is not None:
            activate()

    return step


@primitive()
def convolution_backward_data(call: CpuCall, a: ops.ConvolutionBackwardData) -> Step:
    geometry = _Geometry(call, a.dx, a.w, a.dy, a)

    def step() -> None:
        weights = geometry.weights(a.w).transpose(0, 2, 1)
        for out, image in zip(a.dy.array, a.dx.array, strict=True):
            np.matmul(weights, geometry.maps(out), out=geometry.columns(image))
            geometry.fold(image)

    return step


@primitive(accumulates=True)
def convolution_backward_filter(call: CpuCall, a: ops.ConvolutionBackwardFilter) -> Step:
    steps: list[Step] = []
    if (dw := a.dw) is not None:
        part = call.temporary(dw.shape)
        geometry = _Geometry(call, a.x, dw, a.dy, a)

        def filter_step() -> None:
            geometry.clear()
            if "dw" not in call.accumulates:
                dw.array.fill(0)
            for image, out in zip(a.x.array, a.dy.array, strict=True):
                columns = geometry.unfold(image).transpose(0, 2, 1)
                np.matmul(geometry.maps(out), columns, out=geometry.weights(part))
                np.add(dw.array, part.array, out=dw.array)

        steps.append(filter_step)
    if a.db is not None:
        steps.append(_bias_gradient(call, a.dy, a.db))
    return sequence(steps)


def _bias_gradient(call: CpuCall, dy: Tensor, db: Tensor) -> Step:
    """db = the sum of dy over all axes but that of channels, or added to db if the call says so."""
    axes = (0, *range(2, len(dy.shape)))
    part = call.temporary(db.shape) if "db" in call.accumulates else db

    def step() -> None:
        np.sum(dy.array, axis=axes, out=part.array)
        if part is not db:
            np.add(db.array, part.array, out=db.array)

    return step


@primitive()
def im2col(call: CpuCall, a: ops.Im2col) -> Step:
    windows = Windows(a.x.shape[2:], a.y.shape[2:], a.kernel, a.stride, a.pad, a.dilation)
    unfolding = _Unfolding(call, a.x.shape[1], windows)
    columns = a.x.shape[0], a.x.shape[1], *a.kernel, *windows.out

    def step() -> None:
        unfolding.surround(0)
        for image, out in zip(a.x.array, a.y.array.reshape(columns), strict=True):
            unfolding.unfold(image, out)

    return step


@primitive()
def im2col_backward(call: CpuCall, a: ops.Im2colBackward) -> Step:
    windows = Windows(a.dx.shape[2:], a.dy.shape[2:], a.kernel, a.stride, a.pad, a.dilation)
    unfolding = _Unfolding(call, a.dx.shape[1], windows)

    def step() -> None:
        for out, image in zip(a.dy.array, a.dx.array, strict=True):
            unfolding.fold(out, image)

    return step


@primitive()
def inner_product(call: CpuCall, a: ops.InnerProduct) -> Step:
    activate = None if a.relu is None else formula(call, relu_formula(a.relu), {"x": a.y, "y": a.y})

    def step() -> None:
        weights, out = matrix(a.w, 1), matrix(a.y, a.axis)
        np.matmul(matrix(a.x, a.axis), weights if a.transpose else weights.T, out=out)
        if a.b is not None:
            np.add(out, a.b.array.reshape(-1), out=out)
        if activate is not None:
            activate()

    return step


@direct()
def inner_product_backward_data(call: CpuCall, a: ops.InnerProductBackwardData) -> None:
    weights = matrix(a.w, 1)
    np.matmul(matrix(a.dy, a.axis), weights.T if a.transpose else weights, out=matrix(a.dx, a.axis))


@direct()
def inner_product_backward_filter(call: CpuCall, a: ops.InnerProductBackwardFilter) -> None:
    inputs, gradients = matrix(a.x, a.axis), matrix(a.dy, a.axis)
    if a.dw is not None:
        left, right = (inputs, gradients) if a.transpose else (gradients, inputs)
        np.matmul(left.T, right, out=matrix(a.dw, 1))
    if a.db is not None:
        np.sum(gradients, axis=0, out=a.db.array.reshape(-1))
