"""Owns the primitives that move data, conversions between layouts, and the upload of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..tensor import Step, Tensor, sequence
from .elementwise import Operand, element_step, row_major_place
from .feed import feed_step
from .kernels import blocks_for, kernel, launch
from .layout import C_TYPES, ITEM_BYTES, dtype_of, is_channels_last
from .registry import CudaCall, primitive

FEW_CHANNELS = 8
"""Up to so many, a thread turns all channels of a pixel; more are turned tile by tile."""


def fill_step(y: Tensor, value: float) -> Step:
    """A step that sets every element."""
    return element_step([Operand("y", y, stored=True, loaded=False)], f"y = {float(value)!r}f;")


def convert(source: Tensor, target: Tensor, *, accumulate: bool = False) -> Step:
    """A step that copies (or adds) values between tensors of any layouts."""
    turned = is_channels_last(source)
    if turned == is_channels_last(target):
        operands = [Operand("x", source), Operand("y", target, stored=True, loaded=accumulate)]
        return element_step(operands, "y = x + y;" if accumulate else "y = x;")
    # A stack of matrices, turned: (channels, pixels) row-major is (pixels, channels) channels last.
    shape = (source if turned else target).layout.shape
    batch, channels, pixels = shape[0], shape[1], math.prod(shape[2:])
    rows, columns = (pixels, channels) if turned else (channels, pixels)
    types = {"S": C_TYPES[dtype_of(source)], "T": C_TYPES[dtype_of(target)]}
    if channels <= FEW_CHANNELS:
        name = "few_columns" if turned else "few_rows"
        function = kernel("movement", name, FEW=channels, **types)
        count = batch * pixels
        shape = [np.int64(count), np.int32(pixels), np.int32(accumulate)]
        return launch(function, blocks_for(count), [source, target, *shape])
    grid = (-(-columns // 32), -(-rows // 32), batch)
    shape = [np.int32(rows), np.int32(columns), np.int32(accumulate)]
    function = kernel("movement", "transpose", **types)
    return launch(function, grid, [source, target, *shape], block=(32, 8))


@primitive("own")
def fill(call: CudaCall, y: Tensor, *, value: float) -> Step:
    call.backend.settle(y)
    return fill_step(y, value)


@primitive("own")
def copy(call: CudaCall, x: Tensor, y: Tensor) -> Step:
    call.backend.settle(x)
    call.backend.settle(y)
    return convert(x, y)


def _parts(tensors: Sequence[Tensor | None], whole: Tensor, axis: int) -> list[int]:
    """Where each of the tensors begins in the whole, along axis; a None takes what is left."""
    known = sum(tensor.shape[axis] for tensor in tensors if tensor is not None)
    missing = sum(tensor is None for tensor in tensors)
    left = (whole.shape[axis] - known) // missing if missing else 0
    starts, start = [], 0
    for tensor in tensors:
        starts.append(start)
        start += left if tensor is None else tensor.shape[axis]
    return starts


def _inside(tensor: Tensor, axis: int) -> int:
    """How many elements follow one another in memory for each index of the axis."""
    shape = list(tensor.shape)
    if is_channels_last(tensor):
        shape = [shape[0], *shape[2:], shape[1]]
        axis = {0: 0, 1: len(shape) - 1}.get(axis, axis - 1)
    return math.prod(shape[axis + 1 :])


def copy_columns(
    source: Tensor,
    target: Tensor,
    rows: int,
    width: int,
    *,
    pitch: tuple[int, int],
    offset: tuple[int, int],
    positive: Tensor | None = None,
) -> Step:
    """A step that copies `width` elements of each row; pitch, offset: those of source, target.

    positive: lies as the target; where it is not, zeros are written.
    """
    types = {dtype_of(tensor) for tensor in (source, target, positive) if tensor is not None}
    widest = 16 // max(ITEM_BYTES[dtype] for dtype in types)
    vector = math.gcd(widest, width, *pitch, *offset)
    macros = {"S": C_TYPES[dtype_of(source)], "T": C_TYPES[dtype_of(target)]}
    macros["P"] = C_TYPES[dtype_of(positive or target)]
    arguments = [
        source, target, positive, np.int64(rows), np.int32(width // vector),
        *(np.int64(value) for value in (pitch[0], offset[0], pitch[1], offset[1])),
    ]  # fmt: skip
    function = kernel("movement", "copy_columns", VEC=vector, **macros)
    return launch(function, blocks_for(rows * width // vector), arguments)


@primitive("flat")
def concat(call: CudaCall, xs: list[Tensor], y: Tensor, *, axis: int) -> Step:
    axis %= len(y.shape)
    inside = _inside(y, axis)
    pitch = y.shape[axis] * inside
    return sequence([
        copy_columns(
            x, y, y.size // pitch, x.shape[axis] * inside,
            pitch=(x.shape[axis] * inside, pitch), offset=(0, start * inside),
        )
        for x, start in zip(xs, _parts(xs, y, axis), strict=True)
    ])  # fmt: skip


@primitive("flat")
def split(
    call: CudaCall,
    x: Tensor,
    ys: list[Tensor | None],
    *,
    axis: int,
    positive: list[Tensor | None] | None = None,
) -> Step:
    axis %= len(x.shape)
    inside = _inside(x, axis)
    pitch = x.shape[axis] * inside
    masks = positive or [None] * len(ys)
    return sequence([
        copy_columns(
            x, y, x.size // pitch, y.shape[axis] * inside, positive=mask,
            pitch=(pitch, y.shape[axis] * inside), offset=(start * inside, 0),
        )
        for y, mask, start in zip(ys, masks, _parts(ys, x, axis), strict=True)
        if y is not None
    ])  # fmt: skip


@primitive("own")
def positions(call: CudaCall, y: Tensor) -> Step:
    call.backend.settle(y)
    place = row_major_place(y) if is_channels_last(y) else "at"
    return element_step([Operand("y", y, stored=True, loaded=False)], f"y = (float)({place});")


@primitive("own")
def host(
    call: CudaCall,
    reads: list[Tensor],
    writes: list[Tensor],
    *,
    function: Callable[..., None],
    feed: bool = False,
) -> Step:
    backend = call.backend
    for tensor in [*reads, *writes]:
        backend.settle(tensor)
    if feed:
        return feed_step(backend, writes, function)

    def step() -> None:
        values = [backend.read(tensor) for tensor in writes]
        function([backend.read(tensor) for tensor in reads], values)
        for tensor, value in zip(writes, values, strict=True):
            backend.write(tensor, value)

    return step
