"""Owns the NumPy primitive that turns raw records into input."""

from __future__ import annotations

from ..records import transform_record
from ..tensor import Step, Tensor
from .registry import CpuCall, primitive


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
    factor = call.backend.dtype_of(y).type(scale)

    def step() -> None:
        average = None if mean is None else mean.array
        images = x.array.transpose(0, 3, 1, 2) if interleaved else x.array
        for image, choice, out in zip(images, table.array.tolist(), y.array, strict=True):
            transform_record(image, out, choice, mean=average, scale=factor)

    return step
