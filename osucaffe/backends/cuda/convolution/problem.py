"""What a convolution is: its shapes and its window, whatever computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from ...primitives.products import ConvolutionWindow
from ...tensor import Shape, Tensor

Window = tuple[Shape, Shape, Shape]
"""stride, pad, dilation"""


@dataclass(frozen=True)
class Problem:
    """A convolution of images x (N, C, *in) by filters w (O, C / group, *kernel) to maps y
    (N, O, *out); or a gradient of it, where some of these are gradients, of the same shapes.

    flipped: w lies as in the convolution that this is `transposed` from.
    """

    x: Shape
    w: Shape
    y: Shape
    window: Window
    group: int
    flipped: bool = False

    @classmethod
    def of(cls, x: Tensor, w: Tensor, y: Tensor, a: ConvolutionWindow) -> Problem:
        """The convolution of these, or of what they are gradients of."""
        window = tuple(map(int, a.stride)), tuple(map(int, a.pad)), tuple(map(int, a.dilation))
        return cls(x.shape, w.shape, y.shape, window, a.group)

    @classmethod
    def like(cls, problem: Problem, **more: Any) -> Self:
        """A problem as a subclass sees it. more: the fields that the subclass adds."""
        common = problem.x, problem.w, problem.y, problem.window, problem.group, problem.flipped
        return cls(*common, **more)

    @property
    def kernel(self) -> Shape:
        """Extents of the filters."""
        return self.w[2:]

    @property
    def stride(self) -> Shape:
        """Of each axis."""
        return self.window[0]

    @property
    def pad(self) -> Shape:
        """Of each axis."""
        return self.window[1]

    @property
    def channels(self) -> int:
        """Of a group."""
        return self.w[1]

    @property
    def outputs(self) -> int:
        """Of a group."""
        return self.y[1] // self.group

    @property
    def columns(self) -> int:
        """Weights of a filter."""
        return math.prod(self.w[1:])

    @property
    def work(self) -> int:
        """Multiplications."""
        return math.prod(self.y) * self.columns

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product: each pixel of y depends on that pixel of x alone."""
        strided_or_padded = {*self.stride} != {1} or any(self.pad)
        return self.group == 1 and math.prod(self.kernel) == 1 and not strided_or_padded

    @property
    def is_dense(self) -> bool:
        """Whether it is one of images, with stride and dilation 1."""
        stride, _, dilation = self.window
        return len(self.x) == 4 and {*stride, *dilation} == {1}

    @property
    def macros(self) -> dict[str, int]:
        """Macros of every kernel for images: all extents but that of the batch."""
        c, h, w = self.x[1:]
        o, oh, ow = self.y[1:]
        (kh, kw), (sh, sw), (ph, pw) = self.kernel, self.stride, self.pad
        return {
            "C": c, "H": h, "W": w, "O": o, "OH": oh, "OW": ow, "KH": kh, "KW": kw, "SH": sh,
            "SW": sw, "PH": ph, "PW": pw, "G": self.group, "CG": self.channels, "OG": self.outputs,
            "FLIPPED": int(self.flipped),
        }  # fmt: skip

    @property
    def transposed(self) -> Self:
        """Where it is dense, the convolution of y's gradient that gives x's; each channel of its
        filters is rotated by 180 degrees."""
        stride, pad, dilation = self.window
        around = tuple(size - 1 - before for size, before in zip(self.kernel, pad, strict=True))
        filters = (self.x[1], self.outputs, *self.kernel)
        window = stride, around, dilation
        return replace(self, x=self.y, w=filters, y=self.x, window=window, flipped=True)
