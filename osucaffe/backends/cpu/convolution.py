"""Owns convolution by NumPy: one image at a time is unfolded into columns for a matrix product."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..tensor import Step, Tensor
from .elementwise import formula, relu_formula
from .registry import CpuCall, primitive
from .windows import Windows


class _Geometry:
    """The shapes of one convolution, and its scratch: a padded image and its columns."""

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
        self.windows = Windows(x.shape[2:], y.shape[2:], w.shape[2:], stride, pad, dilation)
        self.group = group
        self.rows = channels // group * self.windows.area
        self.places = math.prod(y.shape[2:])
        self.outputs = y.shape[1] // group
        # A 1x1 kernel that visits every pixel needs no columns: the image is already a matrix.
        self.direct = (
            self.windows.area == 1 and self.windows.plain and x.shape[2:] == y.shape[2:]
        )
        self.padded = self.columns = None
        if not self.direct:
            self.padded = call.temporary((channels, *self.windows.padded))
            self.columns = call.temporary((channels, *self.windows.kernel, *y.shape[2:]))

    def clear(self) -> None:
        """Zero the padding (scratch holds anything before a step)."""
        if self.padded is not None:
            self.padded.array.fill(0)

    def unfold(self, image: np.ndarray) -> np.ndarray:
        """The columns of an image: (group, rows, places)."""
        if self.padded is None or self.columns is None:
            return image.reshape(self.group, self.rows, self.places)
        if self.windows.plain:
            source = image
        else:
            source = self.padded.array
            np.copyto(source[self.windows.interior], image)
        np.copyto(self.columns.array, self.windows.unfold(source))
        return self.columns.array.reshape(self.group, self.rows, self.places)

    def fold(self, columns: Callable[[np.ndarray], None], image: np.ndarray) -> None:
        """image = the sum of the columns, which the function given writes, where they came from."""
        if self.padded is None or self.columns is None:
            columns(image.reshape(self.group, self.rows, self.places))
            return
        columns(self.columns.array.reshape(self.group, self.rows, self.places))
        target = self.padded.array
        target.fill(0)
        pieces = self.columns.array.reshape(len(target), self.windows.area, *self.windows.out)
        for tap, place in enumerate(self.windows.taps):
            target[place] += pieces[:, tap]
        np.copyto(image, target[self.windows.interior])

    def matrices(self, w: Tensor) -> np.ndarray:
        """Weights as (group, outputs, rows)."""
        return w.array.reshape(self.group, self.outputs, self.rows)

    def maps(self, image: np.ndarray) -> np.ndarray:
        """One image of the output as (group, outputs, places)."""
        return image.reshape(self.group, self.outputs, self.places)


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
) -> Step:
    geometry = _Geometry(call, x, w, y, stride, pad, dilation, group)
    activate = None if relu is None else formula(call, relu_formula(relu), {"x": y, "y": y})

    def step() -> None:
        geometry.clear()
        weights = geometry.matrices(w)
        for image, out in zip(x.array, y.array, strict=True):
            np.matmul(weights, geometry.unfold(image), out=geometry.maps(out))
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
        weights = geometry.matrices(w).transpose(0, 2, 1)
        for out, image in zip(dy.array, dx.array, strict=True):
            maps = geometry.maps(out)
            geometry.fold(lambda columns, maps=maps: np.matmul(weights, maps, out=columns), image)

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
                np.matmul(geometry.maps(out), columns, out=geometry.matrices(part))
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
