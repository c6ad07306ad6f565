"""Owns what a convolution is: its shapes and its window, whatever computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...primitives.products import ConvolutionWindow
from ...tensor import Shape, Tensor

Window = tuple[Shape, Shape, Shape]
"""stride, pad, dilation"""


@dataclass(frozen=True)
class Problem:
    """A convolution of images x (N, C, *in) by filters w (O, C / group, *kernel) to maps y
    (N, O, *out); or a gradient of it, where some of these are gradients, of the same shapes."""

    x: Shape
    w: Shape
    y: Shape
    window: Window
    group: int

    @classmethod
    def of(cls, x: Tensor, w: Tensor, y: Tensor, a: ConvolutionWindow) -> Problem:
        """The convolution of these, or of what they are gradients of."""
        window = tuple(map(int, a.stride)), tuple(map(int, a.pad)), tuple(map(int, a.dilation))
        return cls(x.shape, w.shape, y.shape, window, a.group)

    @property
    def kernel(self) -> Shape:
        """Extents of the filters."""
        return self.w[2:]

    @property
    def work(self) -> int:
        """Multiplications."""
        return math.prod(self.y) * math.prod(self.w[1:])

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product: each pixel of y depends on that pixel of x alone."""
        stride, pad, _ = self.window
        return self.group == 1 and math.prod(self.kernel) == 1 and {*stride} == {1} and not any(pad)
