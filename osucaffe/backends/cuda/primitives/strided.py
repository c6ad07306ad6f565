"""Owns the primitives that read tensors in another order, part by part or again and again.

One generated kernel serves them: for each point of a box, every operand has a distance along each
axis of the box (0: it is repeated), whatever the layouts. Extents are constants in the text, so
that the compiler turns divisions into multiplications.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

import numpy as np

from ...formula import to_c
from ...tensor import Shape, Step, Tensor, sequence
from ..layout import C_TYPES, dtype_of, strides
from ..passes.elementwise import fill_step
from ..passes.rows import sum_parts
from ..registry import CudaCall, primitive
from ..runtime import device
from ..runtime.compile import kernel_from
from ..runtime.launch import THREADS, blocks_for, launch

OUTPUTS = "yz"


@dataclass(frozen=True)
class View:
    """A tensor as a box sees it: elements between neighbours along each axis, and the first."""

    name: str
    tensor: Tensor
    strides: tuple[int, ...]
    offset: int = 0
    stored: bool = False


def _places(views: Sequence[View], box: Shape, numbers: dict[str, Sequence[int]]) -> str:
    """C that computes the place of each view for a point of the box.

    numbers: variables in C that number the points along some axes each, from the slowest axis to
    the fastest; together they have all axes.
    """
    lines = []
    for number, axes in numbers.items():
        lines.append(f"uint32_t {number}_rest = {number};")
        for axis in reversed(axes):
            if box[axis] > 1:
                rest, extent = f"{number}_rest", f"{box[axis]}u"
                lines.append(f"uint32_t i{axis} = {rest} % {extent}; {rest} /= {extent};")
    for view in views:
        terms = [f"{view.offset}"]
        for axis in itertools.chain(*numbers.values()):
            if box[axis] > 1 and view.strides[axis]:
                terms.append(f"(int64_t)i{axis} * {view.strides[axis]}")
        lines.append(f"int64_t {view.name}_at = {' + '.join(terms)};")
    return "\n        ".join(lines)


def _loads(views: Sequence[View]) -> str:
    return " ".join(
        f"float {v.name};" if v.stored else f"float {v.name} = to_float({v.name}_[{v.name}_at]);"
        for v in views
    )


def _declared(views: Sequence[View]) -> str:
    return ", ".join(f"{C_TYPES[dtype_of(view.tensor)]}* {view.name}_" for view in views)


def _memory_order(view: View, box: Shape) -> list[int]:
    """The axes of a box from the slowest to the fastest in the view's memory."""
    return sorted(range(len(box)), key=lambda axis: -view.strides[axis])


def map_step(views: Sequence[View], box: Shape, body: str, accumulate: bool = False) -> Step:
    """A step that runs `body` (C, over the views' names) for each point of the box.

    accumulate: add to what is stored.
    """
    count = math.prod(box)
    if count >= 2**32:
        raise ValueError(f"a box of {count} elements is too large")
    stored = [view for view in views if view.stored]
    stores = []
    for view in stored:
        place = f"{view.name}_[{view.name}_at]"
        value = f"to_float({place}) + {view.name}" if accumulate else view.name
        stores.append(f"{place} = from_float<{C_TYPES[dtype_of(view.tensor)]}>({value});")
    text = f"""
extern "C" __global__ void map({_declared(views)}) {{
    PDL_BEGIN;
    FOR_EACH({count}ll) {{
        {_places(views, box, {"id": _memory_order(stored[0], box)})}
        {_loads(views)}
        {{ {body} }}
        {" ".join(stores)}
    }}
}}
"""
    return launch(kernel_from(text, "map"), blocks_for(count), [view.tensor for view in views])


def copy_step(
    x: Tensor,
    y: Tensor,
    box: Shape,
    *,
    x_strides: Sequence[int] | None = None,
    x_offset: int = 0,
    y_strides: Sequence[int] | None = None,
    y_offset: int = 0,
    accumulate: bool = False,
) -> Step:
    """A step that copies a box of x to y."""
    views = [
        View("x", x, tuple(x_strides or strides(x)), x_offset),
        View("y", y, tuple(y_strides or strides(y)), y_offset, stored=True),
    ]
    return map_step(views, box, "y = x;", accumulate)


def _broadcast_strides(tensor: Tensor, box: Shape) -> tuple[int, ...]:
    pairs = zip(strides(tensor), tensor.shape, box, strict=True)
    return tuple(0 if extent == 1 < wide else step for step, extent, wide in pairs)


def _settle(call: CudaCall, *tensors: Tensor) -> None:
    for tensor in tensors:
        call.backend.choose_layout(tensor)


@primitive("own")
def permute(call: CudaCall, x: Tensor, y: Tensor, *, axes: Sequence[int]) -> Step:
    _settle(call, x, y)
    from_x = strides(x)
    return copy_step(x, y, y.shape, x_strides=[from_x[axis] for axis in axes])


def _corner(tensor: Tensor, offsets: Sequence[int]) -> int:
    return sum(step * offset for step, offset in zip(strides(tensor), offsets, strict=True))


@primitive("own")
def crop(call: CudaCall, x: Tensor, y: Tensor, *, offsets: Sequence[int]) -> Step:
    _settle(call, x, y)
    return copy_step(x, y, y.shape, x_offset=_corner(x, offsets))


@primitive("own")
def crop_backward(call: CudaCall, dy: Tensor, dx: Tensor, *, offsets: Sequence[int]) -> Step:
    _settle(call, dy, dx)
    copied = copy_step(dy, dx, dy.shape, y_offset=_corner(dx, offsets))
    return sequence([fill_step(dx, 0.0), copied])


@primitive("own")
def broadcast(
    call: CudaCall,
    inputs: list[Tensor],
    outputs: list[Tensor],
    *,
    formula: str,
    constants: dict[str, float] | None = None,
) -> Step:
    _settle(call, *inputs, *outputs)
    box = outputs[0].shape
    views = [
        View(name, tensor, _broadcast_strides(tensor, box))
        for name, tensor in zip(ascii_lowercase, inputs, strict=False)
    ]
    views += [
        View(name, tensor, strides(tensor), stored=True)
        for name, tensor in zip(OUTPUTS, outputs, strict=False)
    ]
    return map_step(views, box, to_c(formula, [v.name for v in views], constants=constants))


@primitive("own")
def reduce(call: CudaCall, inputs: list[Tensor], y: Tensor, **settings: Any) -> Step:
    return _reduce(call, inputs, y, accumulate=False, **settings)


@primitive("own")
def reduce_gradient(call: CudaCall, inputs: list[Tensor], dw: Tensor, **settings: Any) -> Step:
    return _reduce(call, inputs, dw, accumulate="dw" in call.accumulates, **settings)


def _reduce(
    call: CudaCall,
    inputs: list[Tensor],
    y: Tensor,
    *,
    formula: str,
    axes: Sequence[int],
    constants: dict[str, float] | None = None,
    accumulate: bool,
) -> Step:
    _settle(call, *inputs, y)
    y = call.in_layout(y, nhwc=False, dtype="float32")
    accumulate = accumulate and not call.after  # the conversion adds
    box: Shape = np.broadcast_shapes(*(tensor.shape for tensor in inputs))
    summed = sorted(axis % len(box) for axis in axes)
    kept = [axis for axis in range(len(box)) if axis not in summed]
    views = [
        View(name, tensor, _broadcast_strides(tensor, box))
        for name, tensor in zip(ascii_lowercase, inputs, strict=False)
    ]
    body = to_c(formula, [*(view.name for view in views), "y"], constants=constants)
    columns = math.prod(box[axis] for axis in kept)
    rows = math.prod(box[axis] for axis in summed)
    # Neighbouring threads read neighbouring elements: sums beside one another, or parts of one.
    largest = max(views, key=lambda view: view.tensor.count)
    fastest = min((axis for axis in range(len(box)) if box[axis] > 1), default=0,
                  key=lambda axis: largest.strides[axis] or math.inf)  # fmt: skip
    across = 32 if fastest in kept and columns >= 8 else 1
    groups = -(-columns // across)
    enough = device.current().enough_blocks // groups
    parts = max(1, min(enough, rows // (THREADS // across * 4), 512))
    order = [axis for axis in _memory_order(largest, box) if axis in summed]
    places = _places(views, box, {"column": kept, "row": order})
    text = _reduction(views, places, body, (rows, columns), across)
    tensors = [view.tensor for view in views]
    function = kernel_from(text, "reduce")
    if parts == 1:
        return launch(function, (groups, 1), [*tensors, y, np.int32(accumulate)])
    partial = call.temporary((parts, columns))
    return sequence([
        launch(function, (groups, parts), [*tensors, partial, np.int32(0)]),
        sum_parts(partial, y, accumulate=accumulate),
    ])  # fmt: skip


def _reduction(
    views: Sequence[View], places: str, body: str, extents: tuple[int, int], across: int
) -> str:
    """The kernel that evaluates `body` for a box of (rows, columns) points and sums its rows, of
    which each block of a column of the grid takes a part; `across` columns a block."""
    rows, columns = extents
    return f"""
#define ACROSS {across}
extern "C" __global__ void reduce({_declared(views)}, float* sums, int accumulate) {{
    PDL_BEGIN;
    __shared__ float shared[{THREADS}];
    uint32_t column = blockIdx.x * ACROSS + threadIdx.x % ACROSS;
    uint32_t first = (uint32_t)({rows}ull * blockIdx.y / gridDim.y);
    uint32_t last = (uint32_t)({rows}ull * (blockIdx.y + 1) / gridDim.y);
    float sum = 0;
    if (column < {columns}u)
        for (uint32_t row = first + threadIdx.x / ACROSS; row < last; row += {THREADS} / ACROSS) {{
            {places}
            {_loads(views)}
            float y;
            {{ {body} }}
            sum += y;
        }}
    shared[threadIdx.x] = sum;
    for (int half = {THREADS} / 2; half >= ACROSS; half >>= 1) {{
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }}
    if (threadIdx.x < ACROSS && column < {columns}u) {{
        int64_t to = blockIdx.y * (int64_t){columns} + column;
        sums[to] = shared[threadIdx.x] + (accumulate ? sums[to] : 0.0f);
    }}
}}
"""
