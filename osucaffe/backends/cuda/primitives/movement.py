"""Owns the primitives that move data, and the upload of batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...tensor import Step, Tensor, sequence
from ..layout import is_channels_last
from ..passes.convert import convert, copy_columns
from ..passes.elementwise import Operand, element_step, fill_step, row_major_place
from ..registry import CudaCall, primitive
from ..runtime.upload import feed_step


@primitive("own")
def fill(call: CudaCall, y: Tensor, *, value: float) -> Step:
    call.backend.choose_layout(y)
    return fill_step(y, value)


@primitive("own")
def copy(call: CudaCall, x: Tensor, y: Tensor) -> Step:
    call.backend.choose_layout(x)
    call.backend.choose_layout(y)
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
    relu_output: list[Tensor | None] | None = None,
) -> Step:
    axis %= len(x.shape)
    inside = _inside(x, axis)
    pitch = x.shape[axis] * inside
    masks = relu_output or [None] * len(ys)
    return sequence([
        copy_columns(
            x, y, x.size // pitch, y.shape[axis] * inside, relu_output=mask,
            pitch=(pitch, y.shape[axis] * inside), offset=(start * inside, 0),
        )
        for y, mask, start in zip(ys, masks, _parts(ys, x, axis), strict=True)
        if y is not None
    ])  # fmt: skip


@primitive("own")
def positions(call: CudaCall, y: Tensor) -> Step:
    call.backend.choose_layout(y)
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
    uploads: bool = True,
) -> Step:
    backend = call.backend
    for tensor in [*reads, *writes]:
        backend.choose_layout(tensor)
    if feed:
        return feed_step(backend, writes, function) if uploads else function

    def step() -> None:
        values = [backend.read(tensor) for tensor in writes]
        function([backend.read(tensor) for tensor in reads], values)
        for tensor, value in zip(writes, values, strict=True):
            backend.write(tensor, value)

    return step
