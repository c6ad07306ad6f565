"""Owns the recurrence over time: generated kernels, one or two launches for each time step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..formula import to_c
from ..tensor import Step, Tensor, sequence
from .kernels import THREADS, kernel_from, launch
from .movement import convert, fill_step
from .registry import CudaCall, primitive

GATES = "((int64_t)t * N + n) * K * D + d"
"""Where the first gate of unit d of item n stands at time t."""
STATE = "((int64_t)t * N + n) * D + d"


def _plain(call: CudaCall, tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    call.backend.settle(tensor)
    return call.held(tensor, nhwc=False, dtype="float32")


def _sizes(gates: Tensor, h: Tensor) -> tuple[int, int, int, str]:
    """Items, units, gates of a unit, and the lines that name them in a kernel."""
    _, items, units = h.shape
    parts = gates.shape[2] // units
    return items, units, parts, f"\n#define N {items}\n#define D {units}\n#define K {parts}\n"


@primitive("own")
def recurrent(
    call: CudaCall,
    x: Tensor,
    keep: Tensor,
    w: Tensor | None,
    h_first: Tensor | None,
    c_first: Tensor | None,
    gates: Tensor,
    h_in: Tensor | None,
    h: Tensor,
    c: Tensor | None,
    *,
    formula: str,
) -> Step:
    items, units, parts, sizes = _sizes(gates, h)
    names = [f"x{i}" for i in range(parts)]
    state = ["c_in", "c"] if c is not None else []
    body = to_c(formula, [*names, "keep", "h", *state])
    gate_loads = " ".join(f"float {n} = x_[at + {i} * D];" for i, n in enumerate(names))
    products = " ".join(
        f"float s{i} = 0; for (int j = lane; j < D; j += 32) s{i} += keep * before[n * D + j] * "
        f"w_[({i} * D + d) * D + j]; {n} += warp_sum(s{i});"
        for i, n in enumerate(names)
    )
    gate_stores = " ".join(f"gates_[at + {i} * D] = {n};" for i, n in enumerate(names))
    text = f"""{sizes}
extern "C" __global__ void cell(const float* x_, const float* keep_, const float* w_,
                                const float* h_first, const float* c_first, float* gates_,
                                float* h_in, float* h_, float* c_, int t) {{
    int unit = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x & 31;
    if (unit >= N * D) return;
    int n = unit / D, d = unit % D;
    int64_t at = {GATES}, here = {STATE};
    float keep = keep_[t * N + n];
    {gate_loads}
    const float* before = t ? h_ + (int64_t)(t - 1) * N * D : h_first;
    if (w_ && before) {{ {products} }}
    if (lane) return;
    {gate_stores}
    if (h_in) h_in[here] = before ? keep * before[n * D + d] : 0.0f;
    float h, c, c_in = !c_ ? 0.0f : t ? c_[here - N * D] : c_first ? c_first[n * D + d] : 0.0f;
    {{ {body} }}
    h_[here] = h;
    if (c_) c_[here] = c;
}}
"""
    function = kernel_from(text, "cell")
    tensors = [x, keep, w, h_first, c_first, gates, h_in, h, c]
    held = [_plain(call, tensor) for tensor in tensors]
    blocks = -(-items * units * 32 // THREADS)
    return sequence([launch(function, blocks, [*held, np.int32(t)]) for t in range(h.shape[0])])


@primitive("own")
def recurrent_backward(
    call: CudaCall,
    keep: Tensor,
    w: Tensor | None,
    c_first: Tensor | None,
    gates: Tensor,
    c: Tensor | None,
    dh: Tensor,
    dh_last: Tensor | None,
    dc_last: Tensor | None,
    dgates: Tensor,
    dh_first: Tensor | None,
    dc_first: Tensor | None,
    *,
    formula: str,
) -> Step:
    items, units, parts, sizes = _sizes(gates, dh)
    inputs = [f"x{i}" for i in range(parts)]
    outputs = [f"dx{i}" for i in range(parts)]
    state = ["c_in", "c", "dc", "dc_in"] if c is not None else []
    body = to_c(formula, [*inputs, *outputs, "keep", "dh", *state])
    loads = " ".join(f"float {n} = gates_[at + {i} * D];" for i, n in enumerate(inputs))
    stores = " ".join(f"dgates_[at + {i} * D] = {n};" for i, n in enumerate(outputs))
    text = f"""{sizes}
#define UNIT \\
    int unit = blockIdx.x * blockDim.x + threadIdx.x; \\
    if (unit >= N * D) return; \\
    int n = unit / D, d = unit % D;

extern "C" __global__ void cell(const float* keep_, const float* c_first, const float* gates_,
                                const float* c_, const float* dh_, float* dgates_,
                                const float* flow, float* cell_flow, int t) {{
    UNIT
    int64_t at = {GATES}, here = {STATE};
    float keep = keep_[t * N + n], dh = dh_[here] + flow[unit];
    float c = c_ ? c_[here] : 0.0f, dc = cell_flow[unit], dc_in = 0, {", ".join(outputs)};
    float c_in = !c_ ? 0.0f : t ? c_[here - N * D] : c_first ? c_first[unit] : 0.0f;
    {loads}
    {{ {body} }}
    {stores}
    cell_flow[unit] = dc_in;
}}

// What the hidden state before step t gets.
extern "C" __global__ void back(const float* keep_, const float* w_, const float* dgates_,
                                float* flow, int t) {{
    UNIT
    const float* row = dgates_ + ((int64_t)t * N + n) * K * D;
    float sum = 0;
    if (w_) for (int j = 0; j < K * D; ++j) sum += row[j] * w_[j * D + d];
    flow[unit] = sum * keep_[t * N + n];
}}
"""
    cell, back = kernel_from(text, "cell"), kernel_from(text, "back")
    given = {name: _plain(call, tensor) for name, tensor in (call.reads | call.writes).items()}
    keep_, w_, c_first_, gates_, c_, dh_, dgates_ = (
        given.get(name) for name in ("keep", "w", "c_first", "gates", "c", "dh", "dgates")
    )
    flow, cell_flow = (call.temporary((items, units)) for _ in range(2))
    steps: list[Step] = [
        fill_step(total, 0.0) if last is None else convert(last, total)
        for total, last in ((flow, given.get("dh_last")), (cell_flow, given.get("dc_last")))
    ]
    blocks = -(-items * units // THREADS)
    for t in reversed(range(dh.shape[0])):
        time: list[Any] = [np.int32(t)]
        steps += [
            launch(
                cell, blocks, [keep_, c_first_, gates_, c_, dh_, dgates_, flow, cell_flow, *time]
            ),
            launch(back, blocks, [keep_, w_, dgates_, flow, *time]),
        ]
    steps += [
        convert(total, first)
        for total, first in ((flow, given.get("dh_first")), (cell_flow, given.get("dc_first")))
        if first is not None
    ]
    return sequence(steps)
