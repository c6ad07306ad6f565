"""Owns convolution by NumPy: one image at a time is unfolded into columns for a matrix product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive
from ..windows import Windows
from .elementwise import formula, relu_formula


class _Unfolding:
    """Copies an image (channels, *extents) into columns (channels, *kernel, *out), and back."""

    def __init__(self, call: CpuCall, channels: int, windows: Windows) -> None:
        self.windows = windows
        self._padded = call.temporary((channels, *windows.padded))

    def clear(self) -> None:
        """Zero the padding (scratch holds anything before a step)."""
        self._padded.array.fill(0)

    def unfold(self, image: np.ndarray, columns: np.ndarray) -> None:
        """Write the windows of an image into columns. `clear` must have been called."""
        if not self.windows.plain:
            np.copyto(self._padded.array[self.windows.interior], image)
            image = self._padded.array
        np.copyto(columns, self.windows.unfold(image))

    def fold(self, columns: np.ndarray, image: np.ndarray) -> None:
        """image = the sum of the columns where they came from."""
        target = self._padded.array
        target.fill(0)
        pieces = columns.reshape(len(target), self.windows.area, *self.windows.out)
        for tap, place in enumerate(self.windows.taps):
            target[place] += pieces[:, tap]
        np.copyto(image, target[self.windows.interior])


class _Geometry:
    """The shapes of one convolution as a matrix product for each group, and its scratch."""

    def __init__(
        self,
        call: CpuCall,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int],
        group: int,
    ) -> None:
        channels = x.shape[1]
        windows = Windows(x.shape[2:], y.shape[2:], w.shape[2:], stride, pad, dilation)
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
            self._unfolding.clear()

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
def convolution(
    call: CpuCall,
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    y: Tensor,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
    relu: float | None = None,
    addend: Tensor | None = None,
) -> Step:
    """addend: y (set by the fusion pass)."""
    geometry = _Geometry(call, x, w, y, stride, pad, dilation, group)
    activate = None if relu is None else formula(call, relu_formula(relu), {"x": y, "y": y})
    made = y if addend is None else call.temporary(y.shape)

    def step() -> None:
        geometry.clear()
        weights = geometry.weights(w)
        for image, out in zip(x.array, made.array, strict=True):
            np.matmul(weights, geometry.unfold(image), out=geometry.maps(out))
        if made is not y:
            np.add(y.array, made.array, out=y.array)
        if b is not None:
            np.add(y.array, b.array.reshape(-1, *[1] * (len(y.shape) - 2)), out=y.array)
        if activate is not None:
            activate()

    return step


@primitive()
def convolution_backward_data(
    call: CpuCall,
    dy: Tensor,
    w: Tensor,
    dx: Tensor,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
) -> Step:
    geometry = _Geometry(call, dx, w, dy, stride, pad, dilation, group)

    def step() -> None:
        weights = geometry.weights(w).transpose(0, 2, 1)
        for out, image in zip(dy.array, dx.array, strict=True):
            np.matmul(weights, geometry.maps(out), out=geometry.columns(image))
            geometry.fold(image)

    return step


@primitive(accumulates=True)
def convolution_backward_filter(
    call: CpuCall,
    x: Tensor,
    dy: Tensor,
    dw: Tensor | None,
    db: Tensor | None,
    *,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    group: int,
) -> Step:
    steps: list[Step] = []
    if dw is not None:
        part = call.temporary(dw.shape)
        geometry = _Geometry(call, x, dw, dy, stride, pad, dilation, group)

        def filter_step() -> None:
            geometry.clear()
            if "dw" not in call.accumulates:
                dw.array.fill(0)
            for image, out in zip(x.array, dy.array, strict=True):
                columns = geometry.unfold(image).transpose(0, 2, 1)
                np.matmul(geometry.maps(out), columns, out=geometry.weights(part))
                np.add(dw.array, part.array, out=dw.array)

        steps.append(filter_step)
    if db is not None:
        steps.append(bias_gradient(call, dy, db, axis=1))

    def step() -> None:
        for each in steps:
            each()

    return step


def bias_gradient(call: CpuCall, dy: Tensor, db: Tensor, axis: int) -> Step:
    """db = the sum of dy over all axes but one, or added to db if the call says so."""
    axes = tuple(each for each in range(len(dy.shape)) if each != axis)
    part = call.temporary(db.shape) if "db" in call.accumulates else db

    def step() -> None:
        np.sum(dy.array, axis=axes, out=part.array)
        if part is not db:
            np.add(db.array, part.array, out=db.array)

    return step


@primitive()
def im2col(
    call: CpuCall,
    x: Tensor,
    y: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> Step:
    windows = Windows(x.shape[2:], y.shape[2:], kernel, stride, pad, dilation)
    unfolding = _Unfolding(call, x.shape[1], windows)
    columns = x.shape[0], x.shape[1], *kernel, *windows.out

    def step() -> None:
        unfolding.clear()
        for image, out in zip(x.array, y.array.reshape(columns), strict=True):
            unfolding.unfold(image, out)

    return step


@primitive()
def im2col_backward(
    call: CpuCall,
    dy: Tensor,
    dx: Tensor,
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
) -> Step:
    windows = Windows(dx.shape[2:], dy.shape[2:], kernel, stride, pad, dilation)
    unfolding = _Unfolding(call, dx.shape[1], windows)

    def step() -> None:
        for out, image in zip(dy.array, dx.array, strict=True):
            unfolding.fold(out, image)

    return step
