"""The primitives that read tensors in another order, part by part or again and again.

One generated kernel serves them: for each point of a box, every operand has a distance along each
axis of the box (0: it is repeated), whatever the layouts. Extents are constants in the text, so
that the compiler turns divisions into multiplications.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import primitives as ops
from ...formula import to_c
from ...tensor import Run, Shape, Tensor, sequence
from ..layout import c_type, strides
from ..passes.elementwise import fill_step
from ..passes.rows import sum_parts
from ..registry import Context, primitive
from ..runtime import device
from ..runtime.compile import kernel_from
from ..runtime.launch import THREADS, blocks_for, launch


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
    return ", ".join(f"{c_type(view.tensor)}* {view.name}_" for view in views)


def _memory_order(view: View, box: Shape) -> list[int]:
    """The axes of a box from the slowest to the fastest in the view's memory."""
    return sorted(range(len(box)), key=lambda axis: -view.strides[axis])


def map_step(views: Sequence[View], box: Shape, body: str) -> Run:
    """A step that runs `body` (C, over the views' names) for each point of the box."""
    count = math.prod(box)
    if count >= 2**32:
        raise ValueError(f"a box of {count} elements is too large")
    stored = [view for view in views if view.stored]
    stores = [f"{v.name}_[{v.name}_at] = from_float<{c_type(v.tensor)}>({v.name});" for v in stored]
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


def _view(name: str, tensor: Tensor, offset: int = 0, stored: bool = False) -> View:
    """A tensor, or a box of it that begins at this element."""
    return View(name, tensor, strides(tensor), offset, stored)


def _broadcast_strides(tensor: Tensor, box: Shape) -> tuple[int, ...]:
    pairs = zip(strides(tensor), tensor.shape, box, strict=True)
    return tuple(0 if extent == 1 < wide else step for step, extent, wide in pairs)


@primitive("own")
def permute(ctx: Context, a: ops.Permute) -> Run:
    ctx.choose_layouts(a.x, a.y)
    shape, permuted = a.seen
    x, from_x = _seen(ctx, a.x, shape)
    y, to_y = _seen(ctx, a.y, permuted)
    views = View("x", x, tuple(from_x[axis] for axis in a.axes)), View("y", y, to_y, stored=True)
    return map_step(views, permuted, "y = x;")


def _seen(ctx: Context, tensor: Tensor, shape: Shape) -> tuple[Tensor, tuple[int, ...]]:
    """A tensor, or a row-major one in its place, and its strides under another shape."""
    found = seen_strides(tensor.shape, strides(tensor), shape)
    if found is None:
        tensor = ctx.in_layout(tensor, nhwc=False)
        found = seen_strides(tensor.shape, strides(tensor), shape)
    assert found is not None, "what is row-major can be seen under any shape"
    return tensor, found


def seen_strides(shape: Shape, distances: Shape, seen: Shape) -> tuple[int, ...] | None:
    """The strides under another shape of what has these under its own; None: there are none."""
    axes = [axis for axis, extent in enumerate(shape) if extent > 1]
    found = [0] * len(seen)
    count = before = 1  # elements of the last axes, as seen and as they are, that go together
    for axis in reversed(range(len(seen))):
        if seen[axis] > 1 and count == before:
            count, before, first = 1, shape[axes[-1]], distances[axes[-1]]
            axes.pop()
        found[axis] = first * count if seen[axis] > 1 else 0
        count *= seen[axis]
        while before < count:
            if distances[axes[-1]] != first * before:
                return None
            before *= shape[axes.pop()]
    return tuple(found)


def _corner(tensor: Tensor, offsets: Sequence[int]) -> int:
    return sum(step * offset for step, offset in zip(strides(tensor), offsets, strict=True))


@primitive("own")
def crop(ctx: Context, a: ops.Crop) -> Run:
    ctx.choose_layouts(a.x, a.y)
    x = _view("x", a.x, _corner(a.x, a.offsets))
    return map_step([x, _view("y", a.y, stored=True)], a.y.shape, "y = x;")


@primitive("own")
def crop_backward(ctx: Context, a: ops.CropBackward) -> Run:
    ctx.choose_layouts(a.dy, a.dx)
    y = _view("y", a.dx, _corner(a.dx, a.offsets), stored=True)
    return sequence([fill_step(a.dx, 0.0), map_step([_view("x", a.dy), y], a.dy.shape, "y = x;")])


@primitive("own")
def broadcast(ctx: Context, a: ops.Broadcast) -> Run:
    ctx.choose_layouts(*a.inputs, *a.outputs)
    box = a.outputs[0].shape
    views = [
        View(name, tensor, _broadcast_strides(tensor, box), stored=name in ops.OUTPUTS)
        for name, tensor in a.operands.items()
    ]
    return map_step(views, box, to_c(a.formula, list(a.operands), constants=a.constants))


@primitive("own")
def reduce(ctx: Context, a: ops.Reduce) -> Run:
    inputs = a.inputs
    ctx.choose_layouts(*inputs, a.y)
    y = ctx.in_layout(a.y, nhwc=False, dtype="float32")
    accumulate = "y" in a.accumulates and not ctx.after  # else a conversion after it adds
    box: Shape = np.broadcast_shapes(*(tensor.shape for tensor in inputs))
    summed = sorted(a.axes)
    kept = [axis for axis in range(len(box)) if axis not in summed]
    views = [
        View(name, tensor, _broadcast_strides(tensor, box)) for name, tensor in a.operands.items()
    ]
    body = to_c(a.formula, [*a.operands, "y"], constants=a.constants)
    columns = math.prod(box[axis] for axis in kept)
    rows = math.prod(box[axis] for axis in summed)
    # Neighbouring threads read neighbouring elements: adjacent sums, or parts of one.
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
        return launch(function, (groups, 1), [*tensors, y, accumulate])
    partial = ctx.temporary((parts, columns))
    return sequence([
        launch(function, (groups, parts), [*tensors, partial, False]),
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
