"""Owns the update of the parameters, one generated kernel over the whole arena; sums of squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...formula import to_c
from ...primitives.solvers import SumOfSquares, Update
from ...tensor import Step, sequence
from ..layout import C_TYPES, c_struct, dtype_of
from ..registry import CudaCall, primitive
from ..runtime import device
from ..runtime.compile import kernel, kernel_from
from ..runtime.launch import THREADS, launch
from .losses import block_for

Segment = tuple[int, int, float, float]
CHUNKS = 1024, 8192
"""Elements that a block updates, of few and of many parameters: part of one parameter, so that its
multipliers are the block's."""
FEW = 2**20
WIDTH = 4


CHUNK = np.dtype([("start", "i8"), ("stop", "i8"), ("rate", "f4"), ("decay", "f4")])
"""What a block updates, and the multipliers of its parameter."""


def chunks(segments: Sequence[Segment]) -> np.ndarray:
    """A table of chunks: pieces of the segments."""
    chunk = CHUNKS[sum(stop - start for start, stop, *_ in segments) > FEW]
    table = [
        (begin, min(begin + chunk, stop), rate, decay)
        for start, stop, rate, decay in segments
        for begin in range(start, stop, chunk)
    ]
    return np.array(table, CHUNK)


@primitive("row")
def update(call: CudaCall, a: Update) -> Step:
    backend = call.backend
    low = backend.low_precision_arena(a.weights)
    tensors = {"w": a.weights, "g": a.gradients, **dict(zip(("h", "h2"), a.history, strict=False))}
    text = update_kernel(
        a.formula, list(tensors), a.names, a.constants, dtype_of(low) if low else None
    )
    table = chunks(a.segments)
    memory = backend.upload(table)
    arguments: list[Any] = [*tensors.values(), low, a.scalars, memory]
    return launch(kernel_from(text, "update"), len(table), arguments)


def update_kernel(
    formula: str,
    operands: Sequence[str],
    names: Sequence[str],
    constants: dict[str, float],
    low: str | None,
) -> str:
    """The text of the kernel. low: the type of the 16-bit copies of the weights, if any."""
    body = to_c(formula, operands, [*names, "rate", "decay"], constants)
    given = " ".join(f"float {name} = scalars[{i}];" for i, name in enumerate(names))
    declared = ", ".join(f"float* __restrict__ {name}_" for name in operands)
    kind = C_TYPES[low] if low else "float"
    written = [name for name in operands if name != "g"]
    vector_loads = " ".join(
        f"float {n}s[WIDTH]; load<float, WIDTH>({n}_ + at, {n}s);" for n in operands
    )
    picks = " ".join(f"float {n} = {n}s[lane];" for n in operands)
    puts = " ".join(f"{n}s[lane] = {n};" for n in written)
    vector_stores = " ".join(f"store<float, WIDTH>({n}_ + at, {n}s);" for n in written)
    loads = " ".join(f"float {n} = {n}_[at];" for n in operands)
    stores = " ".join(f"{n}_[at] = {n};" for n in written)
    return f"""
#define WIDTH {WIDTH}
{c_struct("Chunk", CHUNK)}

extern "C" __global__ void update({declared}, {kind}* __restrict__ low,
                                  const float* scalars, const Chunk* chunks) {{
    PDL_BEGIN;
    Chunk chunk = chunks[blockIdx.x];
    float rate = chunk.rate, decay = chunk.decay;
    {given}
    int64_t whole = chunk.start;
    if (chunk.start % WIDTH == 0) {{
        whole = chunk.stop / WIDTH * WIDTH;
        int stride = blockDim.x * WIDTH;
#pragma unroll 2
        for (int64_t at = chunk.start + threadIdx.x * WIDTH; at < whole; at += stride) {{
            {vector_loads}
#pragma unroll
            for (int lane = 0; lane < WIDTH; ++lane) {{
                {picks}
                {{ {body} }}
                {puts}
            }}
            {vector_stores}
            if (low) store<{kind}, WIDTH>(low + at, ws);
        }}
    }}
    for (int64_t at = whole + threadIdx.x; at < chunk.stop; at += blockDim.x) {{
        {loads}
        {{ {body} }}
        {stores}
        if (low) low[at] = from_float<{kind}>(w);
    }}
}}
"""


@primitive("own")
def sum_of_squares(call: CudaCall, a: SumOfSquares) -> Step:
    call.backend.choose_layout(a.x)
    blocks = min(device.current().enough_blocks, max(1, -(-a.x.size // (THREADS * 8))))
    partial = call.temporary((blocks,))
    squares = kernel("reduce", "square_parts", T=C_TYPES[dtype_of(a.x)])
    arguments = [partial, a.y, np.int64(blocks)]
    return sequence([
        launch(squares, blocks, [a.x, partial, np.int64(a.x.size)]),
        launch(kernel("reduce", "sum_parts"), 1, arguments, block=block_for(blocks)),
    ])  # fmt: skip
