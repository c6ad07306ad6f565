"""Owns the convolution of images with few channels, such as a net's input, by space to depth.

cuDNN is ten times slower than it could be where there are three channels. Blocks of pixels that
become channels make of an 11 x 11 kernel with stride 4 on 3 channels a 3 x 3 kernel with stride 1
on 48; and P neighbouring pixels of the output can be channels of one, so that blocks get wider
still. The output lies in memory as it would have otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor import Shape, Step, Tensor, sequence
from ..call import CudaCall
from ..layout import C_TYPES, ITEM_BYTES, dtype_of, strides
from ..libraries.cudnn import Plan
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch
from .cudnn import Cudnn, plan_step
from .cudnn_graph import Convolution
from .operands import bind_blobs, temporary
from .problem import Problem

MOST_CHANNELS = 4
MOST_PIXELS = 4


def pays(problem: Problem) -> bool:
    """Whether a convolution is to be computed so: images have few channels, and its stride divides
    the work."""
    x, (stride, _, dilation) = problem.x, problem.window
    few = len(x) == 4 and x[1] <= MOST_CHANNELS and max(dilation) == 1 and problem.group == 1
    return few and min(stride) > 1


@dataclass(frozen=True)
class SpaceToDepth:
    """The form of a convolution whose blocks of pixels are channels ("folded", in what follows).

    pixels: neighbours of the output that become channels of one. dtype: of the elements.
    """

    x: Shape
    w: Shape
    y: Shape
    stride: Shape
    pad: Shape
    pixels: int
    dtype: str

    @property
    def block(self) -> Shape:
        """Rows and columns of the image that become channels."""
        return self.stride[0], self.stride[1] * self.pixels

    @property
    def channels(self) -> int:
        """Of the folded image: a multiple of eight."""
        return -(-self.x[1] * math.prod(self.block) // 8) * 8

    @property
    def kernel(self) -> Shape:
        """Extents of the folded kernel."""
        reach = self.w[3] + (self.pixels - 1) * self.stride[1]
        return -(-self.w[2] // self.block[0]), -(-reach // self.block[1])

    @property
    def folded_x(self) -> Shape:
        """(N, channels, rows, columns)"""
        rows, columns = self.folded_y[2:]
        extents = rows + self.kernel[0] - 1, columns + self.kernel[1] - 1
        return (self.x[0], self.channels, *extents)

    @property
    def folded_w(self) -> Shape:
        """(pixels * O, channels, *kernel)"""
        return (self.pixels * self.w[0], self.channels, *self.kernel)

    @property
    def folded_y(self) -> Shape:
        """(N, pixels * O, rows, columns)"""
        return self.y[0], self.y[1] * self.pixels, self.y[2], self.y[3] // self.pixels

    @property
    def folded(self) -> Problem:
        """What is to be computed then."""
        window = (1, 1), (0, 0), (1, 1)
        return Problem(self.folded_x, self.folded_w, self.folded_y, window, 1)

    def __str__(self) -> str:
        return f"pixels {self.pixels}"

    def _kernel(self, name: str, source: str, target: str) -> Any:
        vector = 16 // ITEM_BYTES[self.dtype]
        fold_h, fold_w = self.folded_x[2:]
        return kernel(
            "space_to_depth", name, S=C_TYPES[source], T=C_TYPES[target], VEC=vector, C=self.x[1],
            SH=self.stride[0], SW=self.stride[1], PH=self.pad[0], PW=self.pad[1], KH=self.w[2],
            KW=self.w[3], BW=self.block[1], PIXELS=self.pixels, FOLDED=self.channels, FH=fold_h,
            FW=fold_w, FKH=self.kernel[0], FKW=self.kernel[1],
        )  # fmt: skip

    def fold_images(self, x: Tensor, folded: Tensor) -> Step:
        """A step that brings x into this form, in whatever layout it lies."""
        pixels = folded.size // self.channels
        arguments = [x, folded, np.int64(pixels), *map(np.int32, x.shape[2:])]
        arguments += map(np.int64, strides(x))
        return launch(
            self._kernel("fold_images", dtype_of(x), self.dtype), blocks_for(pixels), arguments
        )

    def fold_filters(self, w: Tensor, folded: Tensor) -> Step:
        """A step that brings the filters into this form."""
        arguments = [w, folded, np.int32(w.shape[0]), *map(np.int64, strides(w))]
        function = self._kernel("fold_filters", dtype_of(w), self.dtype)
        return launch(function, blocks_for(folded.size), arguments)

    def unfold_filters(self, folded: Tensor, dw: Tensor, *, accumulate: bool) -> Step:
        """A step that brings folded gradients back."""
        arguments = [folded, dw, np.int32(dw.shape[0]), *map(np.int64, strides(dw))]
        function = self._kernel("unfold_filters", self.dtype, "float32")
        return launch(function, blocks_for(dw.size), [*arguments, np.int32(accumulate)])

    def around(
        self,
        call: CudaCall,
        operation: str,
        x: Tensor,
        w: Tensor,
        make: Callable[[Tensor, Tensor], Step],
    ) -> Step:
        """A step that computes the convolution folded: "forward" its y, "filter" its w.

        make: makes what does so, of folded images and filters.
        """
        folded_x, folded_w = temporary(call, self.folded_x), temporary(call, self.folded_w)
        forward = operation == "forward"
        steps = [self.fold_filters(w, folded_w)] if forward else []
        steps += [self.fold_images(x, folded_x), make(folded_x, folded_w)]
        if not forward:
            steps.append(self.unfold_filters(folded_w, w, accumulate="dw" in call.accumulates))
        return sequence(steps)


def forms(dtype: str, problem: Problem) -> list[SpaceToDepth]:
    """The forms of a convolution in elements of dtype: with one pixel, and with the most."""
    stride, pad, _ = problem.window
    most = math.gcd(problem.y[3], MOST_PIXELS)
    return [
        SpaceToDepth(problem.x, problem.w, problem.y, stride, pad, pixels, dtype)
        for pixels in dict.fromkeys((1, most))
    ]


class SpaceToDepthCudnn(Cudnn):
    """cuDNN on a convolution in this form: "forward" its y, "filter" the gradient of its w."""

    def __init__(self, call: CudaCall, form: SpaceToDepth, operation: str) -> None:
        self._form = form
        self._operation = operation
        gpu = call.backend
        folded = Convolution.of(form.folded, operation, gpu.precision, gpu.dtype)
        super().__init__(gpu, f"cudnn by space to depth, {form}", folded, self._run)

    def _run(self, call: CudaCall, plan: Plan) -> Step:
        w = call.needed("w" if self._operation == "forward" else "dw")
        tensors, behind = bind_blobs(call, self._operation)

        def step(x: Tensor, w: Tensor) -> Step:
            return plan_step(call, plan, {"x": x, "w": w, "y": tensors["y"]})

        return sequence([self._form.around(call, self._operation, tensors["x"], w, step), *behind])
