"""Owns the primitives that turn raw records into input, in the memory order of what reads it."""

from __future__ import annotations

import math

import numpy as np

from ...primitives.records import CachedBatch, CachedRows, NextRow, Transform
from ...tensor import Step, Tensor
from ..layout import C_TYPES, dtype_of, is_channels_last
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import THREADS, blocks_for, launch


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
    whole = a.mean is not None and a.mean.shape[1:] == extents
    mean, labels = (
        None if tensor is None else call.in_layout(tensor, nhwc=False, dtype="float32")
        for tensor in (a.mean, labels)
    )
    if addresses is not None:
        x = call.row_major(addresses)
    batch, channels, height, width = a.y.shape
    macros = {"CACHED": 0, "PARTS": 1, "CHANNELS": channels, "WHOLE": int(whole), **macros}
    macros |= {"FROM_LAST": int(a.interleaved), "LAST": int(is_channels_last(a.y))}
    function = kernel("records", "transform", T=C_TYPES[dtype_of(a.y)], **macros)
    count = batch * height * width
    sides = [np.int32(extent) for extent in (height, width, *extents)]
    arguments = [x, table, mean, a.y, labels, np.int64(count), *sides, np.float32(a.scale)]
    return launch(function, blocks_for(count), arguments)


@primitive("plain")
def cached_rows(call: CudaCall, a: CachedRows) -> Step:
    size = math.prod(a.y.shape[1:])
    arguments = [a.records, a.rows, a.y, np.int64(a.y.count), np.int64(size)]
    return launch(kernel("values", "cached_rows"), blocks_for(a.y.count), arguments)


@primitive("plain")
def next_row(call: CudaCall, a: NextRow) -> Step:
    arguments = [a.table, a.cursor, a.row, np.int32(a.table.shape[0]), np.int64(a.row.count)]
    return launch(kernel("values", "next_row"), 1, arguments, block=THREADS)
