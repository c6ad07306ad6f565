"""Owns the primitive that turns raw records into input, in the memory order of what reads it."""

from __future__ import annotations

import numpy as np

from ...tensor import Step, Tensor
from ..layout import C_TYPES, dtype_of, is_channels_last
from ..registry import CudaCall, primitive
from ..runtime.compile import kernel
from ..runtime.launch import blocks_for, launch


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
    for tensor in (x, table, mean, y):
        if tensor is not None:
            call.backend.choose_layout(tensor)
    x, table = (call.in_layout(tensor, nhwc=False) for tensor in (x, table))
    extents = x.shape[1:3] if interleaved else x.shape[2:]
    whole = mean is not None and mean.shape[1:] == extents
    if mean is not None:
        mean = call.in_layout(mean, nhwc=False, dtype="float32")
    batch, channels, height, width = y.shape
    macros = {"T": C_TYPES[dtype_of(y)], "CHANNELS": channels, "WHOLE": int(whole)}
    macros |= {"FROM_LAST": int(interleaved), "LAST": int(is_channels_last(y))}
    function = kernel("records", "transform", **macros)
    count = batch * height * width
    sides = [np.int32(extent) for extent in (height, width, *extents)]
    arguments = [x, table, mean, y, np.int64(count), *sides, np.float32(scale)]
    return launch(function, blocks_for(count), arguments)
