"""Owns the primitives that turn raw records into input, in the memory order of what reads it."""

from __future__ import annotations

import math

import numpy as np

from ...tensor import Step, Tensor
from ..layout import C_TYPES, dtype_of, is_channels_last
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import THREADS, blocks_for, launch


@primitive("own")
def transform(
    call: CudaCall,
    x: Tensor,
    table: Tensor,
    mean: Tensor | None,
    y: Tensor,
    *,
    scale: float,
    interleaved: bool = False,
) -> Step:
    return _transform(call, x, table, mean, y, None, None, scale, interleaved)


@primitive("own")
def cached_batch(
    call: CudaCall,
    records: Tensor,
    rows: Tensor,
    mean: Tensor | None,
    y: Tensor,
    labels: Tensor | None = None,
    addresses: Tensor | None = None,
    *,
    scale: float,
    interleaved: bool = False,
) -> Step:
    return _transform(call, records, rows, mean, y, labels, addresses, scale, interleaved)


def _transform(
    call: CudaCall,
    x: Tensor,
    table: Tensor,
    mean: Tensor | None,
    y: Tensor,
    labels: Tensor | None,
    addresses: Tensor | None,
    scale: float,
    interleaved: bool,
) -> Step:
    for tensor in (x, table, mean, y, labels):
        if tensor is not None:
            call.backend.choose_layout(tensor)
    x, table = (call.in_layout(tensor, nhwc=False) for tensor in (x, table))
    extents = x.shape[1:3] if interleaved else x.shape[2:]
    whole = mean is not None and mean.shape[1:] == extents
    if mean is not None:
        mean = call.in_layout(mean, nhwc=False, dtype="float32")
    if labels is not None:
        labels = call.in_layout(labels, nhwc=False, dtype="float32")
    parts = 1
    if addresses is not None:
        parts, x = addresses.shape[0], call.row_major(addresses)
    batch, channels, height, width = y.shape
    macros = {"T": C_TYPES[dtype_of(y)], "CHANNELS": channels, "WHOLE": int(whole)}
    macros |= {"FROM_LAST": int(interleaved), "LAST": int(is_channels_last(y))}
    macros |= {"CACHED": int(call.name == "cached_batch"), "PARTS": parts}
    function = kernel("records", "transform", **macros)
    count = batch * height * width
    sides = [np.int32(extent) for extent in (height, width, *extents)]
    arguments = [x, table, mean, y, labels, np.int64(count), *sides, np.float32(scale)]
    return launch(function, blocks_for(count), arguments)


@primitive("own")
def cached_rows(call: CudaCall, records: Tensor, rows: Tensor, y: Tensor) -> Step:
    records, rows, y = (call.row_major(tensor) for tensor in (records, rows, y))
    size = math.prod(y.shape[1:])
    arguments = [records, rows, y, np.int64(y.count), np.int64(size)]
    return launch(kernel("values", "cached_rows"), blocks_for(y.count), arguments)


@primitive("own")
def next_row(call: CudaCall, table: Tensor, cursor: Tensor, row: Tensor) -> Step:
    table, cursor, row = (call.row_major(tensor) for tensor in (table, cursor, row))
    arguments = [table, cursor, row, np.int32(table.shape[0]), np.int64(row.count)]
    return launch(kernel("values", "next_row"), 1, arguments, block=THREADS)
