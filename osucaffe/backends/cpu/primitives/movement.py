"""The NumPy primitives that move data, or pick elements by their place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...primitives import movement as ops
from ...tensor import Run, Shape, Tensor
from ..registry import Context, direct, primitive
from .formulas import matrix, planes


@direct(agnostic=lambda a: a.value == 0)
def fill(ctx: Context, a: ops.Fill) -> None:
    a.y.array.fill(a.value)


@direct(agnostic=True)
def copy(ctx: Context, a: ops.Copy) -> None:
    np.copyto(a.y.array, a.x.array, casting="unsafe")


def _box(part: Tensor, offsets: Mapping[int, int]) -> tuple[slice, ...]:
    """The box of the part's extents that begins at these offsets, by axis, else at 0."""
    starts = [offsets.get(axis, 0) for axis in range(len(part.shape))]
    return tuple(slice(at, at + extent) for at, extent in zip(starts, part.shape, strict=True))


@primitive()
def concat(ctx: Context, a: ops.Concat) -> Run:
    before = (slice(None),) * a.axis
    boxes = [
        (x, (*before, slice(to, to + extent)), (*before, slice(at, at + extent)))
        for x, to, (at, extent) in zip(a.xs, a.starts, a.parts, strict=True)
    ]

    def step() -> None:
        for x, to, of_x in boxes:
            np.copyto(a.y.array[to], x.array[of_x])

    return step


@primitive()
def split(ctx: Context, a: ops.Split) -> Run:
    boxes = [
        (y, _box(y, {a.axis: at})) for y, at in zip(a.ys, a.starts, strict=True) if y is not None
    ]

    def step() -> None:
        for y, box in boxes:
            np.copyto(y.array, a.x.array[box])

    return step


@direct()
def permute(ctx: Context, a: ops.Permute) -> None:
    shape, permuted = a.seen
    np.copyto(a.y.array.reshape(permuted), a.x.array.reshape(shape).transpose(a.axes))


@primitive()
def crop(ctx: Context, a: ops.Crop) -> Run:
    box = _box(a.y, dict(enumerate(a.offsets)))

    def step() -> None:
        np.copyto(a.y.array, a.x.array[box])

    return step


@primitive()
def crop_backward(ctx: Context, a: ops.CropBackward) -> Run:
    box = _box(a.dy, dict(enumerate(a.offsets)))

    def step() -> None:
        a.dx.array.fill(0)
        np.copyto(a.dx.array[box], a.dy.array)

    return step


_NO_NUMBER = np.iinfo(np.int64).min


class Indices:
    """Whole numbers from 0 to below a bound, read from floats into memory that is reused.

    Call `look` first in a step; then `values` holds them, and `wrong` where one is out of range.
    """

    def __init__(self, ctx: Context, source: Tensor, shape: Shape, bound: int) -> None:
        self._source, self._bound, self.values = source, bound, ctx.temporary(shape, "int64")
        self.wrong, self._flag = ctx.temporary(shape, "bool"), ctx.temporary(shape, "bool")

    def look(self) -> None:
        """Read the numbers."""
        values, wrong, flag = self.values.array, self.wrong.array, self._flag.array
        source = self._source.array.reshape(values.shape)
        np.isnan(source, out=flag)
        with np.errstate(invalid="ignore"):
            np.copyto(values, source, casting="unsafe")
        np.copyto(values, _NO_NUMBER, where=flag)  # what NaN becomes depends on the processor
        np.less(values, 0, out=wrong)
        np.greater_equal(values, self._bound, out=flag)
        np.logical_or(wrong, flag, out=wrong)


@primitive()
def gather(ctx: Context, a: ops.Gather) -> Run:
    rows = Indices(ctx, a.index, (a.index.count,), a.x.shape[0])

    def step() -> None:
        rows.look()
        out = matrix(a.y, len(a.index.shape))
        # mode "clip" keeps NumPy from making a copy first
        np.take(matrix(a.x, 1), rows.values.array, axis=0, out=out, mode="clip")
        np.copyto(out, np.nan, where=rows.wrong.array[:, None])

    return step


@direct()
def gather_backward(ctx: Context, a: ops.GatherBackward) -> None:
    a.dx.array.fill(0)
    out = matrix(a.dx, 1)
    for row, gradient in zip(a.index.array.flat, matrix(a.dy, len(a.index.shape)), strict=True):
        if 0 <= row < len(out):
            out[int(row)] += gradient


@direct()
def arange(ctx: Context, a: ops.Arange) -> None:
    flat = a.y.array.reshape(-1)
    flat.fill(1)
    flat[:1] = 0
    np.cumsum(flat, out=flat)


@primitive()
def top_k(ctx: Context, a: ops.TopK) -> Run:
    length = a.length

    def step() -> None:
        scores = planes(a.x, a.axis)
        # Backwards, a stable sort leaves the later of equal elements first. NumPy allocates its
        # result: no layer that trains calls this.
        order = np.argsort(scores, axis=1, kind="stable")[:, : -length - 1 : -1]
        if a.index is not None:
            np.copyto(planes(a.index, a.axis), order, casting="unsafe")
        if a.value is not None:
            np.copyto(planes(a.value, a.axis), np.take_along_axis(scores, order, axis=1))

    return step


@direct()
def collective(ctx: Context, a: ops.Collective) -> None:
    a.operation(a.x.array.reshape(-1)).wait()


@primitive()
def host(ctx: Context, a: ops.Host) -> Run:
    if a.feed:  # it places the tensors
        return a.function

    def step() -> None:
        a.function([tensor.array for tensor in a.reads], [tensor.array for tensor in a.writes])

    return step
