"""Owns passes that copy: between layouts and element types, and columns of a matrix."""

from __future__ import annotations

import math

from ...tensor import Step, Tensor
from ..layout import ITEM_BYTES, dtype_of, is_channels_last
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch
from .elementwise import Operand, element_step

FEW_CHANNELS = 8
"""Up to so many, a thread moves all channels of a pixel; more are transposed tile by tile."""


def convert(source: Tensor, target: Tensor, *, accumulate: bool = False) -> Step:
    """A step that copies (or adds) values between tensors of any layouts."""
    from_channels_last = is_channels_last(source)
    if from_channels_last == is_channels_last(target):
        operands = [Operand("x", source), Operand("y", target, stored=True, loaded=accumulate)]
        return element_step(operands, "y = x + y;" if accumulate else "y = x;")
    # A stack of matrices to transpose: (channels, pixels) row-major is (pixels, channels) in NHWC.
    shape = (source if from_channels_last else target).layout.shape
    batch, channels, pixels = shape[0], shape[1], math.prod(shape[2:])
    rows, columns = (pixels, channels) if from_channels_last else (channels, pixels)
    if channels <= FEW_CHANNELS:
        count = batch * pixels
        function = kernel(
            "movement", "few_channels", S=source, T=target, FEW=channels,
            FROM_LAST=from_channels_last,
        )  # fmt: skip
        return launch(function, blocks_for(count), [source, target, count, pixels, accumulate])
    return transpose(source, target, rows, columns, batch, accumulate=accumulate)


def transpose(
    source: Tensor,
    target: Tensor,
    rows: int,
    columns: int,
    matrices: int = 1,
    *,
    accumulate: bool = False,
) -> Step:
    """A step that transposes matrices of rows x columns, which lie one behind the other."""
    function = kernel("movement", "transpose", S=source, T=target)
    grid = (-(-columns // 32), -(-rows // 32), matrices)
    return launch(function, grid, [source, target, rows, columns, accumulate], block=(32, 8))


def copy_columns(
    source: Tensor,
    target: Tensor,
    rows: int,
    width: int,
    *,
    pitch: tuple[int, int],
    offset: tuple[int, int],
    relu_output: Tensor | None = None,
) -> Step:
    """A step that copies `width` elements of each row; pitch, offset: those of source, target.

    relu_output: lies as the target; where it is not positive, zeros are written.
    """
    types = {dtype_of(tensor) for tensor in (source, target, relu_output) if tensor is not None}
    widest = 16 // max(ITEM_BYTES[dtype] for dtype in types)
    vector = math.gcd(widest, width, *pitch, *offset)
    function = kernel(
        "movement", "copy_columns", S=source, T=target, P=relu_output or target, VEC=vector
    )
    arguments = [
        source, target, relu_output, rows, width // vector, pitch[0], offset[0], pitch[1], offset[1]
    ]  # fmt: skip
    return launch(function, blocks_for(rows * width // vector), arguments)
