"""The geometry of sliding windows over any number of axes, and images with their padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..tensor import Shape, Tensor
from .registry import Context


class Windows:
    """Windows of a kernel over an image, whose axes are the last ones of the arrays given.

    padded: the extents of an image with its padding, and with what the last windows reach beyond.
    taps: for each element of the kernel, where it reads a padded image.
    """

    def __init__(
        self,
        image: Shape,
        out: Shape,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int],
        dilation: Sequence[int] | None = None,
    ) -> None:
        self.image, self.out = tuple(image), tuple(out)
        self.kernel, self.stride, self.pad = tuple(kernel), tuple(stride), tuple(pad)
        self.dilation = tuple(dilation or [1] * len(self.kernel))
        reach = [
            (o - 1) * s + d * (k - 1) + 1
            for o, s, d, k in zip(self.out, self.stride, self.dilation, self.kernel, strict=True)
        ]
        self.padded = tuple(
            max(extent + 2 * p, far)
            for extent, p, far in zip(self.image, self.pad, reach, strict=True)
        )
        self.plain = self.padded == self.image
        self.interior: tuple[Any, ...] = (..., *(
            slice(p, p + extent) for p, extent in zip(self.pad, self.image, strict=True)
        ))  # fmt: skip
        self.taps = [self._tap(offset) for offset in np.ndindex(*self.kernel)]

    @property
    def area(self) -> int:
        """The number of elements of the kernel."""
        return math.prod(self.kernel)

    def _tap(self, offset: Sequence[int]) -> tuple[Any, ...]:
        axes = zip(offset, self.dilation, self.stride, self.out, strict=True)
        return (..., *(slice(k * d, k * d + (o - 1) * s + 1, s) for k, d, s, o in axes))

    @property
    def _corners(self) -> tuple[np.ndarray, ...]:
        """Where the windows begin in the unpadded image, on each axis: an open mesh over `out`."""
        axes = zip(self.out, self.stride, self.pad, strict=True)
        return np.ix_(*(np.arange(o) * s - p for o, s, p in axes))

    @property
    def _pitches(self) -> list[int]:
        """How far apart neighbours on each axis lie in the flat image."""
        return [math.prod(self.image[axis + 1 :]) for axis in range(len(self.image))]

    def _flat(self, places: Sequence[np.ndarray]) -> np.ndarray:
        """The flat index in the unpadded image of places on each axis: int32 of shape `out`."""
        index: np.ndarray = sum(map(np.multiply, places, self._pitches), np.zeros(self.out, int))
        return index.astype(np.int32)

    def starts(self) -> np.ndarray:
        """The flat index in the unpadded image of each window's first corner (it may lie outside).

        int32 of shape `out`; add a tap's shift to get the index of that element.
        """
        return self._flat(self._corners)

    def first_inside(self) -> np.ndarray:
        """The flat index of each window's first element inside the image: int32 of shape `out`."""
        return self._flat([np.maximum(corner, 0) for corner in self._corners])

    def shifts(self) -> list[int]:
        """For each tap, how far it lies after the window's first corner in the flat image."""
        steps = [d * pitch for d, pitch in zip(self.dilation, self._pitches, strict=True)]
        return [int(np.dot(offset, steps)) for offset in np.ndindex(*self.kernel)]

    def areas(self) -> np.ndarray:
        """The elements of each window up to extent + pad: float64 of shape `out`."""
        axes = zip(self._corners, self.kernel, self.image, self.pad, strict=True)
        lengths = (np.minimum(at + k, extent + p) - at for at, k, extent, p in axes)
        return math.prod(lengths, start=np.ones(self.out))


class PaddedImages(Windows):
    """Windows over images (channels, *extents), one after another: scratch holds the image whose
    windows are read, or added to, where that has padding."""

    def __init__(self, ctx: Context, x: Tensor, y: Tensor, *window: Sequence[int]) -> None:
        """window: kernel, stride, pad, and dilation if there is one."""
        super().__init__(x.shape[2:], y.shape[2:], *window)
        self.channels = x.shape[1]
        self._scratch = None if self.plain else ctx.temporary((self.channels, *self.padded))

    def fill_padding(self, value: float) -> None:
        """Fill the padding: before the first image of a step (scratch holds anything then)."""
        if self._scratch is not None:
            self._scratch.array.fill(value)

    def with_padding(self, image: np.ndarray) -> np.ndarray:
        """The image with its padding, which `fill_padding` has filled."""
        if self._scratch is None:
            return image
        padded: np.ndarray = self._scratch.array
        np.copyto(padded[self.interior], image)
        return padded

    def accumulator(self, image: np.ndarray) -> np.ndarray:
        """A zeroed padded image to add to; `finish` copies its interior to the image."""
        target = image if self._scratch is None else self._scratch.array
        target.fill(0)
        return target

    def finish(self, image: np.ndarray) -> None:
        if self._scratch is not None:
            np.copyto(image, self._scratch.array[self.interior])

    def unfold(self, image: np.ndarray, columns: np.ndarray) -> None:
        """Write the windows of an image into columns (channels, *kernel, *out)."""
        padded = self.with_padding(image)
        channel, *pitches = padded.strides
        steps = [d * pitch for d, pitch in zip(self.dilation, pitches, strict=True)]
        strides = [s * pitch for s, pitch in zip(self.stride, pitches, strict=True)]
        windows = np.lib.stride_tricks.as_strided(
            padded, (self.channels, *self.kernel, *self.out), (channel, *steps, *strides)
        )
        np.copyto(columns, windows)

    def fold(self, columns: np.ndarray, image: np.ndarray) -> None:
        """image = the sum of the columns where they came from."""
        target = self.accumulator(image)
        pieces = columns.reshape(self.channels, self.area, *self.out)
        for number, tap in enumerate(self.taps):
            target[tap] += pieces[:, number]
        self.finish(image)
