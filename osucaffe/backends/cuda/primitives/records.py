"""The primitives that turn raw records into input, in the memory order of what reads it."""

from __future__ import annotations

from ... import primitives as ops
from ...tensor import Run, Tensor
from ..layout import is_channels_last
from ..registry import Context, primitive
from ..runtime.compile import kernel
from ..runtime.launch import THREADS, blocks_for, launch
from .movement import gather_step


@primitive("own")
def transform(ctx: Context, a: ops.Transform) -> Run:
    return _transform(ctx, a, a.x, a.table, None)


@primitive("own")
def cached_batch(ctx: Context, a: ops.CachedBatch) -> Run:
    parts = 1 if a.addresses is None else a.addresses.shape[0]
    return _transform(ctx, a, a.records, a.rows, a.labels, a.addresses, CACHED=1, PARTS=parts)


def _transform(
    ctx: Context,
    a: ops.Transform | ops.CachedBatch,
    x: Tensor,
    table: Tensor,
    labels: Tensor | None,
    addresses: Tensor | None = None,
    **macros: int,
) -> Run:
    ctx.choose_layouts(x, table, a.mean, a.y, labels)
    x, table = (ctx.in_layout(tensor, nhwc=False) for tensor in (x, table))
    extents = x.shape[1:3] if a.interleaved else x.shape[2:]
    is_image = a.mean is not None and a.mean.shape[1:] == extents
    mean, labels = (
        None if tensor is None else ctx.in_layout(tensor, nhwc=False, dtype="float32")
        for tensor in (a.mean, labels)
    )
    if addresses is not None:
        x = ctx.row_major(addresses)
    batch, channels, height, width = a.y.shape
    macros = {"CACHED": 0, "PARTS": 1, "CHANNELS": channels, "MEAN_IMAGE": is_image, **macros}
    macros |= {"FROM_LAST": a.interleaved, "LAST": is_channels_last(a.y)}
    function = kernel("records", "transform", T=a.y, **macros)
    count = batch * height * width
    arguments = [x, table, mean, a.y, labels, count, height, width, *extents, a.scale]
    return launch(function, blocks_for(count), arguments)


@primitive("plain")
def cached_rows(ctx: Context, a: ops.CachedRows) -> Run:
    return gather_step(a.records, a.rows, a.y)


@primitive("plain")
def next_row(ctx: Context, a: ops.NextRow) -> Run:
    arguments = [a.table, a.cursor, a.row, a.table.shape[0], a.row.count]
    return launch(kernel("values", "next_row"), 1, arguments, block=THREADS)
