"""Owns the primitives that turn raw records into input, in the memory order of what reads it."""

from __future__ import annotations

from ...primitives.records import CachedBatch, CachedRows, NextRow, Transform
from ...tensor import Step, Tensor
from ..layout import is_channels_last
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import THREADS, blocks_for, launch
from .movement import gather_step


@primitive("own")
def transform(call: CudaCall, a: Transform) -> Step:
    return _transform(call, a, a.x, a.table, None)


@primitive("own")
def cached_batch(call: CudaCall, a: CachedBatch) -> Step:
    parts = 1 if a.addresses is None else a.addresses.shape[0]
    return _transform(call, a, a.records, a.rows, a.labels, a.addresses, CACHED=1, PARTS=parts)


def _transform(
    call: CudaCall,
    a: Transform | CachedBatch,
    x: Tensor,
    table: Tensor,
    labels: Tensor | None,
    addresses: Tensor | None = None,
    **macros: int,
) -> Step:
    call.choose_layouts(x, table, a.mean, a.y, labels)
    x, table = (call.in_layout(tensor, nhwc=False) for tensor in (x, table))
    extents = x.shape[1:3] if a.interleaved else x.shape[2:]
    is_image = a.mean is not None and a.mean.shape[1:] == extents
    mean, labels = (
        None if tensor is None else call.in_layout(tensor, nhwc=False, dtype="float32")
        for tensor in (a.mean, labels)
    )
    if addresses is not None:
        x = call.row_major(addresses)
    batch, channels, height, width = a.y.shape
    macros = {"CACHED": 0, "PARTS": 1, "CHANNELS": channels, "MEAN_IMAGE": is_image, **macros}
    macros |= {"FROM_LAST": a.interleaved, "LAST": is_channels_last(a.y)}
    function = kernel("records", "transform", T=a.y, **macros)
    count = batch * height * width
    arguments = [x, table, mean, a.y, labels, count, height, width, *extents, a.scale]
    return launch(function, blocks_for(count), arguments)


@primitive("plain")
def cached_rows(call: CudaCall, a: CachedRows) -> Step:
    return gather_step(a.records, a.rows, a.y)


@primitive("plain")
def next_row(call: CudaCall, a: NextRow) -> Step:
    arguments = [a.table, a.cursor, a.row, a.table.shape[0], a.row.count]
    return launch(kernel("values", "next_row"), 1, arguments, block=THREADS)
