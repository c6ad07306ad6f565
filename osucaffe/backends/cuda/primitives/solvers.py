"""The update of the parameters, one generated kernel over the whole arena; sums of squares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import primitives as ops
from ...formula import to_c
from ...tensor import Run, sequence
from .. import tuned
from ..layout import c_struct
from ..passes.elementwise import Operand, vector_function
from ..registry import Context, primitive
from ..runtime import device
from ..runtime.compile import kernel, kernel_from
from ..runtime.launch import THREADS, launch
from .losses import block_for

Segment = tuple[int, int, float, float]
WIDTH = 4
CHUNK = np.dtype(
    [("start", "i8"), ("stop", "i8"), ("rate", "f4"), ("decay", "f4"), ("segment", "i8")]
)
"""What a block updates, and the multipliers and the number of its parameter."""


def chunks(segments: Sequence[Segment]) -> np.ndarray:
    """A table of chunks: pieces of the segments."""
    table = [
        (begin, min(begin + tuned.UPDATE_ELEMENTS, stop), rate, decay, number)
        for number, (start, stop, rate, decay) in enumerate(segments)
        for begin in range(start, stop, tuned.UPDATE_ELEMENTS)
    ]
    return np.array(table, CHUNK)


@primitive("row")
def update(ctx: Context, a: ops.Update) -> Run:
    backend = ctx.backend
    operands = [Operand("w", a.weights, stored=True), Operand("g", a.gradients)]
    history = zip(("h", "h2"), a.history, strict=False)
    operands += [Operand(name, tensor, stored=True) for name, tensor in history]
    names = [*a.names, "rate", "decay", *(ops.SUMS if a.sums is not None else ())]
    body = to_c(a.formula, [x.name for x in operands], names, a.constants)
    if low := backend.low_precision_arena(a.weights):
        operands.append(Operand("low", low, stored=True, loaded=False))
        body += " low = w;"
    table = chunks(a.segments)
    arguments = [*(each.tensor for each in operands), a.scalars, backend.upload(table), a.sums]
    text = update_kernel(operands, body, a.names, sums=a.sums is not None)
    return launch(kernel_from(text, "update"), len(table), arguments)


def update_kernel(
    operands: Sequence[Operand], body: str, names: Sequence[str], *, sums: bool = False
) -> str:
    """The text of the kernel. names: of the scalars that `body` reads; sums: it reads a segment's,
    too."""
    read = ops.SUMS if sums else ()
    parameters = dict.fromkeys([*names, "rate", "decay", *read], "float")
    function, passed = vector_function(operands, body, parameters)
    declared = ", ".join(f"{each.type}* __restrict__ {each.name}_" for each in operands)
    scalars = " ".join(
        [f"float {name} = scalars[{i}];" for i, name in enumerate(names)]
        + [f"float {name} = sums[3 * chunk.segment + {i}];" for i, name in enumerate(read)]
    )
    return f"""{c_struct("Chunk", CHUNK)}
{function}
extern "C" __global__ void update({declared}, const float* scalars, const Chunk* chunks,
                                  const float* sums) {{
    PDL_BEGIN;
    Chunk chunk = chunks[blockIdx.x];
    float rate = chunk.rate, decay = chunk.decay;
    {scalars}
    int64_t rest = chunk.start;
    if (chunk.start % {WIDTH} == 0) {{
        rest = chunk.stop / {WIDTH} * {WIDTH};
        int stride = blockDim.x * {WIDTH};
#pragma unroll 2
        for (int64_t at = chunk.start + threadIdx.x * {WIDTH}; at < rest; at += stride)
            elements<{WIDTH}>(at, {passed});
    }}
    for (int64_t at = rest + threadIdx.x; at < chunk.stop; at += blockDim.x)
        elements<1>(at, {passed});
}}
"""


@primitive("own")
def segment_sums(ctx: Context, a: ops.SegmentSums) -> Run:
    for tensor in (a.x, a.g):
        ctx.backend.choose_layout(tensor)
    table = chunks([(*segment, 0.0, 0.0) for segment in a.segments])
    cuts = np.stack([table["start"], table["stop"]], axis=1)
    firsts = np.searchsorted(table["segment"], np.arange(len(a.segments) + 1)).astype(np.int64)
    partial, upload = ctx.temporary((len(table), len(ops.SUMS))), ctx.backend.upload
    sums = kernel("reduce", "chunk_sums", T=a.x, G=a.g)
    total = kernel("reduce", "total_sums")
    return sequence([
        launch(sums, len(table), [a.x, a.g, upload(cuts), partial]),
        launch(total, len(a.segments), [partial, upload(firsts), a.y]),
    ])  # fmt: skip


@primitive("own")
def sum_of_squares(ctx: Context, a: ops.SumOfSquares) -> Run:
    ctx.backend.choose_layout(a.x)
    blocks = min(device.current().enough_blocks, max(1, -(-a.x.size // (THREADS * 8))))
    partial = ctx.temporary((blocks,))
    squares = kernel("reduce", "square_parts", T=a.x)
    total = kernel("reduce", "sum_parts")
    return sequence([
        launch(squares, blocks, [a.x, partial, a.x.size]),
        launch(total, 1, [partial, a.y, blocks], block=block_for(blocks)),
    ])  # fmt: skip
