"""The NumPy primitives that turn raw records into input, and find them in what is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...primitives import records as ops
from ...records import transform_record
from ...tensor import Run, Tensor
from ..registry import Context, direct, primitive


@primitive()
def transform(ctx: Context, a: ops.Transform) -> Run:
    scale = ctx.backend.dtype_of(a.y).type(a.scale)

    def step() -> None:
        images = a.x.array.transpose(0, 3, 1, 2) if a.interleaved else a.x.array
        _transform(images, a.table.array, a.mean, a.y.array, scale)

    return step


@primitive()
def cached_batch(ctx: Context, a: ops.CachedBatch) -> Run:
    scale = ctx.backend.dtype_of(a.y).type(a.scale)
    shape = a.records.shape[1:]
    size = math.prod(shape)

    def image(number: int) -> np.ndarray:
        if a.addresses is None:
            found = a.records.array[number]
        else:
            place, part = divmod(number, len(a.addresses.array))
            start = int(a.addresses.array[part]) + place * size
            found = ctx.backend.memory_at(start, size).reshape(shape)
        return found.transpose(2, 0, 1) if a.interleaved else found

    def step() -> None:
        images = map(image, a.rows.array[:, 0].tolist())
        _transform(images, a.rows.array[:, 1:4], a.mean, a.y.array, scale)
        if a.labels is not None:
            a.labels.array[:] = a.rows.array[:, 4]

    return step


@direct()
def cached_rows(ctx: Context, a: ops.CachedRows) -> None:
    np.take(a.records.array, a.rows.array[:, 0], axis=0, out=a.y.array, mode="clip")


@direct()
def next_row(ctx: Context, a: ops.NextRow) -> None:
    at = int(a.cursor.array[0]) % len(a.table.array)
    np.copyto(a.row.array, a.table.array[at])
    a.cursor.array[0] = at + 1


def _transform(
    images: Iterable[np.ndarray], table: np.ndarray, mean: Tensor | None, y: np.ndarray, scale: Any
) -> None:
    """Write each image, as its row of the table says, into y."""
    average = None if mean is None else mean.array
    for image, choice, out in zip(images, table.tolist(), y, strict=True):
        transform_record(image, out, choice, mean=average, scale=scale)
