"""Sums over the rows of a matrix: the gradients of biases."""

from __future__ import annotations

import math

from ...tensor import Run, Tensor, sequence
from ..call import Context
from ..layout import ITEM_BYTES, dtype_of
from ..runtime import device
from ..runtime.compile import kernel
from ..runtime.launch import launch

THREADS = 256
MIN_ROWS = 16
"""What a thread sums at least before work is cut into more parts."""


def sum_rows(ctx: Context, x: Tensor, y: Tensor, rows: int, *, accumulate: bool) -> Run:
    """A step that sums the rows of x, a matrix in memory, into y (float32)."""
    columns = x.size // rows
    vector = math.gcd(columns, 16 // ITEM_BYTES[dtype_of(x)])
    groups = min(columns // vector, 32)
    lanes = THREADS // groups
    across = -(-columns // (vector * groups))
    parts = max(1, min(-(-device.current().enough_blocks // across), rows // (lanes * MIN_ROWS)))
    share = -(-rows // parts)
    parts = -(-rows // share)
    function = kernel(
        "gradients", "sum_rows", T=x, VEC=vector, COLUMNS=columns, GROUPS=groups, LANES=lanes
    )
    grid, block = (across, parts), groups * lanes
    if parts == 1:
        return launch(function, grid, [x, y, rows, share, accumulate], block=block)
    partial = ctx.temporary((parts, columns))
    return sequence([
        launch(function, grid, [x, partial, rows, share, False], block=block),
        sum_parts(partial, y, accumulate=accumulate),
    ])  # fmt: skip


def sum_parts(
    partial: Tensor,
    y: Tensor,
    *,
    accumulate: bool,
    more: Tensor | None = None,
    accumulate_more: bool = False,
) -> Run:
    """A step that sums the rows of a (parts, columns) matrix into y. Columns after those of y go
    into `more`, if it is given."""
    parts, columns = partial.shape
    arguments = [partial, y, more, parts, columns, y.size, accumulate, accumulate_more]
    return launch(kernel("gradients", "sum_parts"), -(-columns // 32), arguments, block=(32, 8))
