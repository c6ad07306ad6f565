"""Owns the NumPy primitives that turn raw records into input, and find them in what is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...records import transform_record
from ...tensor import Step, Tensor
from ..registry import CpuCall, primitive


@primitive()
def transform(
    call: CpuCall,
    x: Tensor,
    table: Tensor,
    mean: Tensor | None,
    y: Tensor,
    *,
    scale: float,
    interleaved: bool = False,
) -> Step:
    scale = call.backend.dtype_of(y).type(scale)

    def step() -> None:
        images = x.array.transpose(0, 3, 1, 2) if interleaved else x.array
        _transform(images, table.array, mean, y.array, scale)

    return step


@primitive()
def cached_batch(
    call: CpuCall,
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
    scale = call.backend.dtype_of(y).type(scale)
    shape = records.shape[1:]
    size = math.prod(shape)

    def image(number: int) -> np.ndarray:
        if addresses is None:
            found = records.array[number]
        else:
            place, part = divmod(number, len(addresses.array))
            start = int(addresses.array[part]) + place * size
            found = call.backend.memory_at(start, size).reshape(shape)
        return found.transpose(2, 0, 1) if interleaved else found

    def step() -> None:
        images = map(image, rows.array[:, 0].tolist())
        _transform(images, rows.array[:, 1:4], mean, y.array, scale)
        if labels is not None:
            labels.array[:] = rows.array[:, 4]

    return step


@primitive()
def cached_rows(call: CpuCall, records: Tensor, rows: Tensor, y: Tensor) -> Step:
    def step() -> None:
        np.take(records.array, rows.array[:, 0], axis=0, out=y.array, mode="clip")

    return step


@primitive()
def next_row(call: CpuCall, table: Tensor, cursor: Tensor, row: Tensor) -> Step:
    def step() -> None:
        at = int(cursor.array[0]) % len(table.array)
        np.copyto(row.array, table.array[at])
        cursor.array[0] = at + 1

    return step


def _transform(
    images: Iterable[np.ndarray], table: np.ndarray, mean: Tensor | None, y: np.ndarray, scale: Any
) -> None:
    """Write each image, as its row of the table says, into y."""
    average = None if mean is None else mean.array
    for image, choice, out in zip(images, table.tolist(), y, strict=True):
        transform_record(image, out, choice, mean=average, scale=scale)
