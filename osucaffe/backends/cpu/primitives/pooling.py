"""Pooling by NumPy, one tap of the window after another; unpooling and interpolation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...primitives import pooling as ops
from ...tensor import Run, Tensor
from ..registry import Context, primitive
from ..windows import PaddedImages
from .formulas import RandomBits, flat


class _Images(PaddedImages):
    """The padded images of a pooling, and scratch of one output."""

    def __init__(
        self, ctx: Context, x: Tensor, y: Tensor, a: ops.PoolingWindow | ops.StochasticPooling
    ) -> None:
        super().__init__(ctx, x, y, a.kernel, a.stride, a.pad)
        self._ctx = ctx
        self.origins = self.starts()
        self._shifts, self._positions = self.shifts(), np.zeros_like(self.origins)

    def scratch(self, dtype: str = "float32") -> Tensor:
        """Memory for one value of each window of an image."""
        return self._ctx.temporary((self.channels, *self.out), dtype)

    def positions(self) -> Iterator[tuple[Any, np.ndarray]]:
        """For each tap, it and the flat index of what it reads in each window, in one memory."""
        for tap, shift in zip(self.taps, self._shifts, strict=True):
            yield tap, np.add(self.origins, shift, out=self._positions)


@primitive()
def max_pooling(ctx: Context, a: ops.MaxPooling) -> Run:
    images = _Images(ctx, a.x, a.y, a)
    first = images.first_inside()
    larger = images.scratch("bool")

    def step() -> None:
        images.fill_padding(-np.inf)
        for number, (image, best) in enumerate(zip(a.x.array, a.y.array, strict=True)):
            source = images.with_padding(image)
            best.fill(-np.inf)
            if a.index is None:
                for tap in images.taps:
                    np.maximum(best, source[tap], out=best)
                continue
            where = a.index.array[number]
            np.copyto(where, first)
            for tap, positions in images.positions():
                np.greater(source[tap], best, out=larger.array)
                np.maximum(best, source[tap], out=best)  # NaN, if there is one
                np.copyto(where, positions, where=larger.array)

    return step


@primitive()
def max_pooling_backward(ctx: Context, a: ops.MaxPoolingBackward) -> Run:
    images = _Images(ctx, a.dx, a.dy, a)
    here, part = images.scratch("bool"), images.scratch()

    def step() -> None:
        for number, image in enumerate(a.dx.array):
            target = images.accumulator(image)
            for tap, positions in images.positions():
                np.equal(a.index.array[number], positions, out=here.array)
                np.multiply(a.dy.array[number], here.array, out=part.array)
                target[tap] += part.array
            images.finish(image)

    return step


@primitive()
def average_pooling(ctx: Context, a: ops.AveragePooling) -> Run:
    images = _Images(ctx, a.x, a.y, a)
    areas = images.areas().astype(ctx.backend.dtype)

    def step() -> None:
        images.fill_padding(0)
        for image, mean in zip(a.x.array, a.y.array, strict=True):
            source = images.with_padding(image)
            mean.fill(0)
            for tap in images.taps:
                mean += source[tap]
            mean /= areas

    return step


@primitive()
def average_pooling_backward(ctx: Context, a: ops.AveragePoolingBackward) -> Run:
    images = _Images(ctx, a.dx, a.dy, a)
    areas = images.areas().astype(ctx.backend.dtype)
    share = images.scratch()

    def step() -> None:
        for image, gradient in zip(a.dx.array, a.dy.array, strict=True):
            target = images.accumulator(image)
            np.divide(gradient, areas, out=share.array)
            for tap in images.taps:
                target[tap] += share.array
            images.finish(image)

    return step


def uniform(ctx: Context, y: Tensor, key: int) -> Run:
    """A step that fills y with numbers of [0, 1): 24 random bits each, so float32 holds them."""
    draw = RandomBits(ctx, y.count, key)

    def step() -> None:
        target = flat(y)
        for piece, bits in draw(0, y.count):
            np.right_shift(bits, np.uint64(8), out=bits)
            np.multiply(bits, 2.0**-24, out=target[piece], casting="unsafe")

    return step


@primitive()
def stochastic_pooling(ctx: Context, a: ops.StochasticPooling) -> Run:
    images = _Images(ctx, a.x, a.y, a)
    if not a.train:
        return _expectation(a.x, a.y, images)
    draw, threshold, total = uniform(ctx, a.y, a.key), images.scratch(), images.scratch()
    chosen, beyond = images.scratch("bool"), images.scratch("bool")

    def step() -> None:
        draw()
        images.fill_padding(0)
        for number, (image, value) in enumerate(zip(a.x.array, a.y.array, strict=True)):
            source, where = images.with_padding(image), a.index.array[number]
            total.array.fill(0)
            for tap in images.taps:
                total.array += source[tap]
            np.multiply(value, total.array, out=threshold.array)
            # The first element at which the running sum passes the threshold; a window of zeros
            # gives its first element.
            np.copyto(where, images.origins)
            np.multiply(total.array, 0, out=value)  # NaN, if there is one
            for array in (total.array, chosen.array):
                array.fill(0)
            for tap, positions in images.positions():
                total.array += source[tap]
                np.greater(total.array, threshold.array, out=beyond.array)
                np.greater(beyond.array, chosen.array, out=chosen.array)  # here for the first time
                np.copyto(value, source[tap], where=chosen.array)
                np.copyto(where, positions, where=chosen.array)
                np.copyto(chosen.array, beyond.array)

    return step


def _expectation(x: Tensor, y: Tensor, images: _Images) -> Run:
    """y = sum of x^2 / sum of x: what drawing gives on average; 0 for a window of zeros."""
    total, square = images.scratch(), images.scratch()

    def step() -> None:
        images.fill_padding(0)
        for image, value in zip(x.array, y.array, strict=True):
            source = images.with_padding(image)
            value.fill(0)
            total.array.fill(0)
            for tap in images.taps:
                total.array += source[tap]
                np.square(source[tap], out=square.array)
                value += square.array
            np.maximum(total.array, np.finfo(total.array.dtype).tiny, out=total.array)
            value /= total.array

    return step
