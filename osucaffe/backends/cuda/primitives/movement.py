"""Owns the primitives that move data, and the upload of batches."""

from __future__ import annotations

import math

from ...primitives.movement import Concat, Copy, Fill, Host, Positions, Split
from ...tensor import Step, Tensor, sequence
from ..layout import is_channels_last
from ..passes.convert import convert, copy_columns
from ..passes.elementwise import Operand, element_step, fill_step, row_major_place
from ..registry import CudaCall, primitive
from ..runtime.upload import feed_step


@primitive("own")
def fill(call: CudaCall, a: Fill) -> Step:
    call.backend.choose_layout(a.y)
    return fill_step(a.y, a.value)


@primitive("own")
def copy(call: CudaCall, a: Copy) -> Step:
    call.backend.choose_layout(a.x)
    call.backend.choose_layout(a.y)
    return convert(a.x, a.y)


def _inside(tensor: Tensor, axis: int) -> int:
    """How many elements follow one another in memory for each index of the axis."""
    shape = list(tensor.shape)
    if is_channels_last(tensor):
        shape = [shape[0], *shape[2:], shape[1]]
        axis = {0: 0, 1: len(shape) - 1}.get(axis, axis - 1)
    return math.prod(shape[axis + 1 :])


@primitive("flat")
def concat(call: CudaCall, a: Concat) -> Step:
    inside = _inside(a.y, a.axis)
    pitch = a.y.shape[a.axis] * inside
    return sequence([
        copy_columns(
            x, a.y, a.y.size // pitch, x.shape[a.axis] * inside,
            pitch=(x.shape[a.axis] * inside, pitch), offset=(0, start * inside),
        )
        for x, start in zip(a.xs, a.starts, strict=True)
    ])  # fmt: skip


@primitive("flat")
def split(call: CudaCall, a: Split) -> Step:
    inside = _inside(a.x, a.axis)
    pitch = a.x.shape[a.axis] * inside
    masks = a.relu_output or [None] * len(a.ys)
    return sequence([
        copy_columns(
            a.x, y, a.x.size // pitch, y.shape[a.axis] * inside, relu_output=mask,
            pitch=(pitch, y.shape[a.axis] * inside), offset=(start * inside, 0),
        )
        for y, mask, start in zip(a.ys, masks, a.starts, strict=True)
        if y is not None
    ])  # fmt: skip


@primitive("own")
def positions(call: CudaCall, a: Positions) -> Step:
    call.backend.choose_layout(a.y)
    place = row_major_place(a.y) if is_channels_last(a.y) else "at"
    return element_step([Operand("y", a.y, stored=True, loaded=False)], f"y = (float)({place});")


@primitive("own")
def host(call: CudaCall, a: Host) -> Step:
    backend = call.backend
    for tensor in [*a.reads, *a.writes]:
        backend.choose_layout(tensor)
    if a.feed:
        return feed_step(backend, a.writes, a.function) if a.uploads else a.function

    def step() -> None:
        values = [backend.read(tensor) for tensor in a.writes]
        a.function([backend.read(tensor) for tensor in a.reads], values)
        for tensor, value in zip(a.writes, values, strict=True):
            backend.write(tensor, value)

    return step
