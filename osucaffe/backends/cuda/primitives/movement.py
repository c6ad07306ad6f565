"""The primitives that move data or pick elements by their place, and the upload of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ... import primitives as ops
from ...tensor import Run, Tensor, sequence
from ..input.upload import feed_step
from ..layout import is_channels_last
from ..passes.convert import convert, copy_parts
from ..passes.elementwise import Operand, element_step, fill_step, row_major_place
from ..registry import Context, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch

MAX_PARTS = 16
"""Parts of a tensor that one launch copies: each comes with its numbers."""


@primitive("own")
def fill(ctx: Context, a: ops.Fill) -> Run:
    ctx.backend.choose_layout(a.y)
    return fill_step(a.y, a.value)


@primitive("own")
def copy(ctx: Context, a: ops.Copy) -> Run:
    ctx.backend.choose_layout(a.x)
    ctx.backend.choose_layout(a.y)
    return convert(a.x, a.y)


def _inside(tensor: Tensor, axis: int) -> int:
    """How many elements follow one another in memory for each index of the axis."""
    shape = list(tensor.shape)
    if is_channels_last(tensor):
        shape = [shape[0], *shape[2:], shape[1]]
        axis = {0: 0, 1: len(shape) - 1}.get(axis, axis - 1)
    return math.prod(shape[axis + 1 :])


def _runs(parts: Sequence[Tensor | None]) -> list[list[int]]:
    """The numbers of parts that one launch copies: they follow one another."""
    runs: list[list[int]] = [[]]
    for number, part in enumerate(parts):
        if part is None or len(runs[-1]) == MAX_PARTS:
            runs.append([])
        if part is not None:
            runs[-1].append(number)
    return [run for run in runs if run]


@primitive("flat")
def concat(ctx: Context, a: ops.Concat) -> Run:
    # The largest tells how all lie: with one channel, whatever the order, memory is the same.
    inside = _inside(max(a.y, *a.xs, key=lambda each: each.size), a.axis)
    rows = a.y.size // (a.y.shape[a.axis] * inside)
    parts = [(at * inside, extent * inside) for at, extent in a.parts]
    return sequence([
        copy_parts(
            a.y, [a.xs[i] for i in run], rows, a.starts[run[0]] * inside, cut=False,
            columns=[parts[i] for i in run],
        )
        for run in _runs(a.xs)
    ])  # fmt: skip


@primitive("flat")
def split(ctx: Context, a: ops.Split) -> Run:
    inside = _inside(a.x, a.axis)
    rows = a.x.size // (a.x.shape[a.axis] * inside)
    masks = a.relu_output or [None] * len(a.ys)
    return sequence([
        copy_parts(
            a.x, [a.ys[i] for i in run], rows, a.starts[run[0]] * inside, cut=True,
            relu_outputs=[masks[i] for i in run],
        )
        for run in _runs(a.ys)
    ])  # fmt: skip


@primitive("own")
def arange(ctx: Context, a: ops.Arange) -> Run:
    ctx.backend.choose_layout(a.y)
    place = row_major_place(a.y) if is_channels_last(a.y) else "at"
    return element_step([Operand("y", a.y, stored=True, loaded=False)], f"y = (float)({place});")


@primitive("row")
def collective(ctx: Context, a: ops.Collective) -> Run:
    def step() -> None:
        stream = ctx.backend.current
        a.operation(a.x.array.reshape(-1), stream=stream).wait(stream)

    return step


@primitive("own")
def host(ctx: Context, a: ops.Host) -> Run:
    backend = ctx.backend
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


def _sizes(table: Tensor, index: Tensor) -> list[int]:
    """The rows of the table, the picks, the elements of a row."""
    return [table.shape[0], index.count, math.prod(table.shape[1:])]


@primitive("plain")
def gather(ctx: Context, a: ops.Gather) -> Run:
    return gather_step(a.x, a.index, a.y)


def gather_step(x: Tensor, index: Tensor, y: Tensor) -> Run:
    """A step that sets y to those rows of x."""
    function = kernel("selection", "gather", INDEX=index)
    return launch(function, blocks_for(y.count), [x, index, y, *_sizes(x, index)])


@primitive("plain")
def gather_backward(ctx: Context, a: ops.GatherBackward) -> Run:
    accumulate = "dx" in a.accumulates and not ctx.after  # else a conversion after it adds
    rows, picks, inner = _sizes(a.dx, a.index)
    arguments = [a.dy, a.index, a.dx, rows, picks, inner, accumulate]
    block = 256 if inner > 128 else 128 if inner > 32 else 32
    return launch(kernel("selection", "gather_backward"), max(1, rows), arguments, block=block)


@primitive("plain")
def top_k(ctx: Context, a: ops.TopK) -> Run:
    step = math.prod(a.x.shape[a.axis + 1 :])
    arguments = [a.x, a.index, a.value, a.x.count, a.x.shape[a.axis], a.length, step]
    return launch(kernel("selection", "top_k"), blocks_for(a.x.count), arguments)
