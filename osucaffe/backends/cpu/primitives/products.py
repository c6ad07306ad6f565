"""Convolution and the inner product by NumPy: matrix products, for a convolution one image at
a time, unfolded into columns."""

from __future__ import annotations

import math

import numpy as np

from ...primitives import products as ops
from ...tensor import Run, Tensor, sequence
from ..registry import Context, direct, primitive
from ..windows import PaddedImages
from .formulas import formula, matrix, relu_formula


class _Matrices(PaddedImages):
    """One convolution as a matrix product for each group, and its scratch."""

    def __init__(
        self, ctx: Context, x: Tensor, w: Tensor, y: Tensor, a: ops.ConvolutionWindow
    ) -> None:
        super().__init__(ctx, x, y, w.shape[2:], a.stride, a.pad, a.dilation)
        places, rows = math.prod(self.out), self.channels // a.group * self.area
        self._weights = a.group, y.shape[1] // a.group, rows
        self._maps = a.group, y.shape[1] // a.group, places
        self._matrix = a.group, rows, places
        # A 1x1 kernel that visits every pixel needs no columns: the image is already a matrix.
        direct = self.area == 1 and self.plain and self.image == self.out
        shape = self.channels, *self.kernel, *self.out
        self._columns = None if direct else ctx.temporary(shape)

    def columns_of(self, image: np.ndarray) -> np.ndarray:
        """The columns of an image: (group, rows, places)."""
        if self._columns is not None:
            self.unfold(image, self._columns.array)
        return self.columns(image)

    def columns(self, image: np.ndarray) -> np.ndarray:
        """Where to write the columns that `sum_columns` adds up: (group, rows, places)."""
        columns: np.ndarray = image if self._columns is None else self._columns.array
        return columns.reshape(self._matrix)

    def sum_columns(self, image: np.ndarray) -> None:
        """image = the sum of the columns where they came from."""
        if self._columns is not None:
            self.fold(self._columns.array, image)

    def weights(self, w: Tensor) -> np.ndarray:
        """Weights as (group, outputs, rows)."""
        weights: np.ndarray = w.array.reshape(self._weights)
        return weights

    def maps(self, image: np.ndarray) -> np.ndarray:
        """One image of the output as (group, outputs, places)."""
        return image.reshape(self._maps)


@primitive()
def convolution(ctx: Context, a: ops.Convolution) -> Run:
    matrices = _Matrices(ctx, a.x, a.w, a.y, a)
    activate = None if a.relu is None else formula(ctx, relu_formula(a.relu), {"x": a.y, "y": a.y})
    made = a.y if a.addend is None else ctx.temporary(a.y.shape)

    def step() -> None:
        matrices.fill_padding(0)
        weights = matrices.weights(a.w)
        for image, out in zip(a.x.array, made.array, strict=True):
            np.matmul(weights, matrices.columns_of(image), out=matrices.maps(out))
        if made is not a.y:
            np.add(a.y.array, made.array, out=a.y.array)
        if a.b is not None:
            np.add(a.y.array, a.b.array.reshape(-1, *[1] * (len(a.y.shape) - 2)), out=a.y.array)
        if activate is not None:
            activate()

    return step


@primitive()
def convolution_backward_data(ctx: Context, a: ops.ConvolutionBackwardData) -> Run:
    matrices = _Matrices(ctx, a.dx, a.w, a.dy, a)

    def step() -> None:
        weights = matrices.weights(a.w).transpose(0, 2, 1)
        for out, image in zip(a.dy.array, a.dx.array, strict=True):
            np.matmul(weights, matrices.maps(out), out=matrices.columns(image))
            matrices.sum_columns(image)

    return step


@primitive(accumulates=True)
def convolution_backward_filter(ctx: Context, a: ops.ConvolutionBackwardFilter) -> Run:
    steps: list[Run] = []
    if (dw := a.dw) is not None:
        part = ctx.temporary(dw.shape)
        matrices = _Matrices(ctx, a.x, dw, a.dy, a)

        def filter_step() -> None:
            matrices.fill_padding(0)
            if "dw" not in a.accumulates:
                dw.array.fill(0)
            for image, out in zip(a.x.array, a.dy.array, strict=True):
                columns = matrices.columns_of(image).transpose(0, 2, 1)
                np.matmul(matrices.maps(out), columns, out=matrices.weights(part))
                np.add(dw.array, part.array, out=dw.array)

        steps.append(filter_step)
    if a.db is not None:
        steps.append(_bias_gradient(ctx, a.dy, a.db))
    return sequence(steps)


def _bias_gradient(ctx: Context, dy: Tensor, db: Tensor) -> Run:
    """db = the sum of dy over all axes but that of channels, or added to db if the call says so."""
    axes = (0, *range(2, len(dy.shape)))
    part = ctx.temporary(db.shape) if "db" in ctx.call.accumulates else db

    def step() -> None:
        np.sum(dy.array, axis=axes, out=part.array)
        if part is not db:
            np.add(db.array, part.array, out=db.array)

    return step


@primitive()
def im2col(ctx: Context, a: ops.Im2col) -> Run:
    images = PaddedImages(ctx, a.x, a.y, a.kernel, a.stride, a.pad, a.dilation)
    columns = *a.x.shape[:2], *a.kernel, *images.out

    def step() -> None:
        images.fill_padding(0)
        for image, out in zip(a.x.array, a.y.array.reshape(columns), strict=True):
            images.unfold(image, out)

    return step


@primitive()
def im2col_backward(ctx: Context, a: ops.Im2colBackward) -> Run:
    images = PaddedImages(ctx, a.dx, a.dy, a.kernel, a.stride, a.pad, a.dilation)

    def step() -> None:
        for out, image in zip(a.dy.array, a.dx.array, strict=True):
            images.fold(out, image)

    return step


@primitive()
def inner_product(ctx: Context, a: ops.InnerProduct) -> Run:
    activate = None if a.relu is None else formula(ctx, relu_formula(a.relu), {"x": a.y, "y": a.y})

    def step() -> None:
        weights, out = matrix(a.w, 1), matrix(a.y, a.axis)
        np.matmul(matrix(a.x, a.axis), weights if a.transpose else weights.T, out=out)
        if a.b is not None:
            np.add(out, a.b.array.reshape(-1), out=out)
        if activate is not None:
            activate()

    return step


@direct()
def inner_product_backward_data(ctx: Context, a: ops.InnerProductBackwardData) -> None:
    weights = matrix(a.w, 1)
    np.matmul(matrix(a.dy, a.axis), weights.T if a.transpose else weights, out=matrix(a.dx, a.axis))


@direct()
def inner_product_backward_filter(ctx: Context, a: ops.InnerProductBackwardFilter) -> None:
    inputs, gradients = matrix(a.x, a.axis), matrix(a.dy, a.axis)
    if a.dw is not None:
        left, right = (inputs, gradients) if a.transpose else (gradients, inputs)
        np.matmul(left.T, right, out=matrix(a.dw, 1))
    if a.db is not None:
        np.sum(gradients, axis=0, out=a.db.array.reshape(-1))
