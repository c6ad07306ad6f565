"""The convolution of images with few channels, such as a net's input, by space to depth.

cuDNN is ten times slower than it could be where there are three channels. Blocks of pixels that
become channels make of an 11 x 11 kernel with stride 4 on 3 channels a 3 x 3 kernel with stride 1
on 48. The output is what it would have been otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...tensor import Run, Tensor, sequence
from .. import tuned
from ..call import Context, Kernels, Provider
from ..layout import C_TYPES, ITEM_BYTES, dtype_of, strides
from ..runtime.compile import Kernel, kernel
from ..runtime.launch import blocks_for, launch
from .cudnn import Cudnn
from .operands import operation, temporary
from .problem import Problem

MAX_CHANNELS = 4


def pays(problem: Problem) -> bool:
    """Whether a convolution is to be computed so: images have few channels, and its stride divides
    the work, or there is much of it."""
    x, (stride, _, dilation) = problem.x, problem.window
    few = len(x) == 4 and x[1] <= MAX_CHANNELS and max(dilation) == 1 and problem.group == 1
    return few and (min(stride) > 1 or problem.work >= tuned.SPACE_TO_DEPTH_MIN_WORK)


@dataclass(frozen=True)
class SpaceToDepth:
    """The form of a convolution whose blocks of pixels, a stride wide and high, are channels
    ("folded", in what follows). dtype: of the elements."""

    problem: Problem
    dtype: str

    @functools.cached_property
    def folded(self) -> Problem:
        """What is to be computed then: its images have a multiple of eight channels."""
        y, stride = self.problem.y, self.problem.stride
        channels = -(-self.problem.x[1] * math.prod(stride) // 8) * 8
        kernel = [-(-size // step) for size, step in zip(self.problem.kernel, stride, strict=True)]
        extents = [size + taps - 1 for size, taps in zip(y[2:], kernel, strict=True)]
        x, w = (y[0], channels, *extents), (y[1], channels, *kernel)
        return Problem(x, w, y, ((1, 1), (0, 0), (1, 1)), 1)

    def _kernel(self, name: str, source: str, target: str) -> Kernel:
        _, channels, height, width = self.folded.x
        high, wide = self.folded.kernel
        return kernel(
            "space_to_depth", name, S=C_TYPES[source], T=C_TYPES[target],
            VEC=16 // ITEM_BYTES[self.dtype],
            FOLDED=channels, FH=height, FW=width, FKH=high, FKW=wide, **self.problem.macros,
        )  # fmt: skip

    def fold_images(self, x: Tensor, folded: Tensor) -> Run:
        """A step that brings x into this form, in whatever layout it lies."""
        pixels = folded.size // folded.shape[1]
        arguments = [x, folded, pixels, *x.shape[2:], *strides(x)]
        function = self._kernel("fold_images", dtype_of(x), self.dtype)
        return launch(function, blocks_for(pixels), arguments)

    def fold_filters(self, w: Tensor, folded: Tensor) -> Run:
        """A step that brings the filters into this form."""
        arguments = [w, folded, w.shape[0], *strides(w)]
        function = self._kernel("fold_filters", dtype_of(w), self.dtype)
        return launch(function, blocks_for(folded.size), arguments)

    def unfold_filters(self, folded: Tensor, dw: Tensor, *, accumulate: bool) -> Run:
        """A step that brings folded gradients back."""
        arguments = [folded, dw, dw.shape[0], *strides(dw)]
        function = self._kernel("unfold_filters", self.dtype, "float32")
        return launch(function, blocks_for(dw.size), [*arguments, accumulate])

    def around(self, provider: Kernels | Cudnn) -> Provider:
        """A provider for the folded convolution as one for this: its steps bring the operands into
        this form, and the gradient of the filters back."""
        provider.name += " by space to depth"
        provider.make = functools.partial(self._step, provider.make)
        return provider

    def _step(self, make: Callable[[Any, Context], Run], chosen: Any, ctx: Context) -> Run:
        a, folded_x = ctx.call, temporary(ctx, self.folded.x)
        folded_w = temporary(ctx, self.folded.w)
        steps = [self.fold_images(a.x, folded_x)]
        if operation(ctx) == "forward":
            inner = ctx.replaced(x=folded_x, w=folded_w)
            return sequence([self.fold_filters(a.w, folded_w), *steps, make(chosen, inner)])
        inner = ctx.replaced(x=folded_x, dw=folded_w, accumulates=a.accumulates - {"dw"})
        unfold = self.unfold_filters(folded_w, a.dw, accumulate="dw" in a.accumulates)
        return sequence([*steps, make(chosen, inner), unfold])
