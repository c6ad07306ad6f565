"""Owns the convolution of images with few channels, such as a net's input, by space to depth.

cuDNN is ten times slower than it could be where there are three channels. Blocks of pixels that
become channels make of an 11 x 11 kernel with stride 4 on 3 channels a 3 x 3 kernel with stride 1
on 48; and P neighbouring pixels of the output can be channels of one, so that blocks get wider
still. The output lies in memory as it would have otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor import Run, Shape, Tensor, sequence
from ..call import Context, Kernels, Provider
from ..layout import C_TYPES, ITEM_BYTES, dtype_of, strides
from ..passes.convert import copy_columns
from ..runtime.compile import Kernel, kernel
from ..runtime.launch import blocks_for, launch
from .cudnn import Cudnn
from .operands import operation, temporary
from .problem import Problem

LEAST_WORK = 1e9
"""Multiplications from which on it pays where the window moves by one pixel: the gradient of
VGG-16's first filters takes 0.32 ms in place of 0.44 (64 images in bf16, an H200)."""
MOST_CHANNELS = 4
MOST_PIXELS = 4


def pays(problem: Problem) -> bool:
    """Whether a convolution is to be computed so: images have few channels, and its stride divides
    the work, or there is much of it."""
    x, (stride, _, dilation) = problem.x, problem.window
    few = len(x) == 4 and x[1] <= MOST_CHANNELS and max(dilation) == 1 and problem.group == 1
    return few and (min(stride) > 1 or problem.work >= LEAST_WORK)


@dataclass(frozen=True)
class SpaceToDepth:
    """The form of a convolution whose blocks of pixels are channels ("folded", in what follows).

    pixels: neighbours of the output that become channels of one. dtype: of the elements.
    """

    problem: Problem
    pixels: int
    dtype: str

    @property
    def block(self) -> Shape:
        """Rows and columns of the image that become channels."""
        rows, columns = self.problem.stride
        return rows, columns * self.pixels

    @functools.cached_property
    def folded(self) -> Problem:
        """What is to be computed then: its images have a multiple of eight channels."""
        (n, c, _, _), (_, outputs, high, wide) = self.problem.x, self.problem.y
        channels = -(-c * math.prod(self.block) // 8) * 8
        reach = self.problem.w[3] + (self.pixels - 1) * self.problem.stride[1]
        kernel = -(-self.problem.w[2] // self.block[0]), -(-reach // self.block[1])
        y = n, outputs * self.pixels, high, wide // self.pixels
        x = n, channels, y[2] + kernel[0] - 1, y[3] + kernel[1] - 1
        return Problem(x, (y[1], channels, *kernel), y, ((1, 1), (0, 0), (1, 1)), 1)

    def __str__(self) -> str:
        return f"pixels {self.pixels}"

    def _kernel(self, name: str, source: str, target: str) -> Kernel:
        _, channels, height, width = self.folded.x
        high, wide = self.folded.kernel
        return kernel(
            "space_to_depth", name, S=C_TYPES[source], T=C_TYPES[target],
            VEC=16 // ITEM_BYTES[self.dtype], BW=self.block[1], PIXELS=self.pixels,
            FOLDED=channels, FH=height, FW=width, FKH=high, FKW=wide, **self.problem.macros,
        )  # fmt: skip

    def fold_images(self, x: Tensor, folded: Tensor) -> Run:
        """A step that brings x into this form, in whatever layout it lies."""
        pixels = folded.size // folded.shape[1]
        arguments = [x, folded, np.int64(pixels), *map(np.int32, x.shape[2:])]
        arguments += map(np.int64, strides(x))
        function = self._kernel("fold_images", dtype_of(x), self.dtype)
        return launch(function, blocks_for(pixels), arguments)

    def fold_filters(self, w: Tensor, folded: Tensor) -> Run:
        """A step that brings the filters into this form."""
        arguments = [w, folded, np.int32(w.shape[0]), *map(np.int64, strides(w))]
        function = self._kernel("fold_filters", dtype_of(w), self.dtype)
        return launch(function, blocks_for(folded.size), arguments)

    def unfold_filters(self, folded: Tensor, dw: Tensor, *, accumulate: bool) -> Run:
        """A step that brings folded gradients back."""
        arguments = [folded, dw, np.int32(dw.shape[0]), *map(np.int64, strides(dw))]
        function = self._kernel("unfold_filters", self.dtype, "float32")
        return launch(function, blocks_for(dw.size), [*arguments, np.int32(accumulate)])

    def _repeat(self, ctx: Context, b: Tensor, steps: list[Run]) -> Tensor:
        """The bias for each of the pixels, as it is added to what is folded."""
        repeated = ctx.temporary((self.pixels * b.size,))
        steps.append(
            copy_columns(b, repeated, self.pixels, b.size, pitch=(0, b.size), offset=(0, 0))
        )
        return repeated

    def around(self, provider: Kernels | Cudnn) -> Provider:
        """A provider for the folded convolution as one for this: its steps bring the operands into
        this form, and the gradient of the filters back."""
        provider.name += f" by space to depth, {self}"
        provider.make = functools.partial(self._step, provider.make)
        return provider

    def _step(self, make: Callable[[Any, Context], Run], chosen: Any, ctx: Context) -> Run:
        a, folded_x = ctx.call, temporary(ctx, self.folded.x)
        folded_w = temporary(ctx, self.folded.w)
        steps = [self.fold_images(a.x, folded_x)]
        if operation(ctx) == "forward":
            steps, b = [self.fold_filters(a.w, folded_w), *steps], a.b
            if b is not None and self.pixels > 1:
                b = self._repeat(ctx, b, steps)
            inner = ctx.replaced(x=folded_x, w=folded_w, b=b)
            return sequence([*steps, make(chosen, inner)])
        inner = ctx.replaced(x=folded_x, dw=folded_w, accumulates=a.accumulates - {"dw"})
        unfold = self.unfold_filters(folded_w, a.dw, accumulate="dw" in a.accumulates)
        return sequence([*steps, make(chosen, inner), unfold])


def forms(dtype: str, problem: Problem) -> list[SpaceToDepth]:
    """The forms of a convolution in elements of dtype: with one pixel, and with the most."""
    most = math.gcd(problem.y[3], MOST_PIXELS)
    return [SpaceToDepth(problem, pixels, dtype) for pixels in dict.fromkeys((1, most))]
