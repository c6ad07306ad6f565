"""Owns the geometry of sliding windows over any number of axes, for convolution and pooling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..tensor import Shape


class Windows:
    """Windows of a kernel over an image, whose axes are the last ones of the arrays given.

    padded: the extents of an image with its padding, and with what the last windows reach beyond.
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

    def unfold(self, padded: np.ndarray) -> np.ndarray:
        """A view (channels, *kernel, *out) of a padded image (channels, *padded)."""
        channel, *pitches = padded.strides
        steps = [d * pitch for d, pitch in zip(self.dilation, pitches, strict=True)]
        strides = [s * pitch for s, pitch in zip(self.stride, pitches, strict=True)]
        return np.lib.stride_tricks.as_strided(
            padded, (padded.shape[0], *self.kernel, *self.out), (channel, *steps, *strides)
        )

    def starts(self) -> np.ndarray:
        """The flat index in the unpadded image of each window's first corner (it may lie outside).

        int32 of shape `out`; add a tap's `shifts` to get the index of that element.
        """
        return self._flat(lambda corners: corners)

    def first_inside(self) -> np.ndarray:
        """The flat index of each window's first element inside the image: int32 of shape `out`."""
        return self._flat(lambda corners: np.maximum(corners, 0))

    def _flat(self, place: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The flat index of a place along each axis, given the windows' first corners there."""
        index = np.zeros(self.out, np.int32)
        for axis, (o, s, p) in enumerate(zip(self.out, self.stride, self.pad, strict=True)):
            positions = place(np.arange(o, dtype=np.int32) * s - p)
            positions = positions * math.prod(self.image[axis + 1 :])
            index += positions.reshape(-1, *[1] * (len(self.out) - axis - 1))
        return index

    def shifts(self) -> Iterator[int]:
        """For each tap, how far it lies behind the window's first corner in the flat image."""
        pitches = [math.prod(self.image[axis + 1 :]) for axis in range(len(self.image))]
        for offset in itertools.product(*map(range, self.kernel)):
            yield sum(k * d * p for k, d, p in zip(offset, self.dilation, pitches, strict=True))

    def areas(self) -> np.ndarray:
        """The elements of each window up to extent + pad: float64 of shape `out`."""
        area = np.ones(self.out)
        axes = zip(self.image, self.out, self.kernel, self.stride, self.pad, strict=True)
        for axis, (extent, o, k, s, p) in enumerate(axes):
            start = np.arange(o) * s - p
            length = np.minimum(start + k, extent + p) - start
            area *= length.reshape(-1, *[1] * (len(self.out) - axis - 1))
        return area
