"""Owns formulas over tensors that repeat each other along axes of extent 1, and sums of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from string import ascii_lowercase

import numpy as np

from ...primitives.formulas import Broadcast, Reduce, ReduceGradient, Summation
from ...tensor import Shape, Step, Tensor
from ..evaluate import CHUNK, Evaluate
from ..registry import CpuCall, primitive
from ..workers import SMALL, cut
from .elementwise import OUTPUTS

Box = tuple[slice, ...]


def boxes(shape: Shape) -> list[Box]:
    """Cut an array of this shape into boxes of at most CHUNK elements, in row-major order."""
    split, inner = len(shape), 1  # whole axes from `split` on are `inner` elements
    while split and inner * shape[split - 1] <= CHUNK:
        split -= 1
        inner *= shape[split]
    if not split:
        return [tuple(slice(0, extent) for extent in shape)]
    rows = max(1, CHUNK // inner)
    whole = tuple(slice(0, extent) for extent in shape[split:])
    return [
        (*(slice(at, at + 1) for at in outer), slice(start, min(start + rows, extent)), *whole)
        for extent in [shape[split - 1]]
        for outer in np.ndindex(*shape[: split - 1])
        for start in range(0, extent, rows)
    ]


def clip(box: Box, shape: Shape) -> Box:
    """The box in a tensor that is repeated along its axes of extent 1."""
    return tuple(
        slice(0, 1) if extent == 1 else part for part, extent in zip(box, shape, strict=True)
    )


def extents(box: Box) -> Shape:
    """The shape of a box."""
    return tuple(part.stop - part.start for part in box)


@primitive()
def broadcast(call: CpuCall, a: Broadcast) -> Step:
    tensors = [*a.inputs, *a.outputs]
    operands = [*ascii_lowercase[: len(a.inputs)], *OUTPUTS[: len(a.outputs)]]
    pieces = [
        (extents(box), [clip(box, tensor.shape) for tensor in tensors])
        for box in boxes(a.outputs[0].shape)
    ]

    def worker(start: int, stop: int) -> Callable[[], None]:
        evaluate = Evaluate(
            a.formula, operands, (), a.constants, dtype=call.backend.dtype, shared=True
        )

        def work() -> None:
            evaluate.set_scalars(())
            for shape, places in pieces[start:stop]:
                # The ellipsis keeps a scalar's array one: it is written to.
                arrays = [t.array[*p, ...] for t, p in zip(tensors, places, strict=True)]
                evaluate.piece(arrays, shape)

        return work

    workers = call.backend.workers
    parts = workers.count if a.outputs[0].count >= SMALL else 1
    return partial(workers.run, [worker(*part) for part in cut(len(pieces), parts)])


def _reduce(call: CpuCall, a: Summation, y: Tensor) -> Step:
    inputs = a.inputs
    full = np.broadcast_shapes(*(tensor.shape for tensor in inputs))
    summed = tuple(a.axes)
    kept = tuple(1 if axis in summed else extent for axis, extent in enumerate(full))
    operands = [*ascii_lowercase[: len(inputs)], OUTPUTS[0]]
    evaluate = Evaluate(a.formula, operands, (), a.constants, dtype=call.backend.dtype)
    length = min(CHUNK, math.prod(full))
    value, part = call.temporary((length,)), call.temporary((length,))
    pieces = [
        (extents(box), [clip(box, tensor.shape) for tensor in inputs], clip(box, kept))
        for box in boxes(full)
    ]

    def step() -> None:
        total = y.array.reshape(kept)
        total.fill(0)
        evaluate.set_scalars(())
        for shape, places, place in pieces:
            values = value.array[: math.prod(shape)].reshape(shape)
            arrays = [t.array[*p, ...] for t, p in zip(inputs, places, strict=True)]
            evaluate.piece([*arrays, values], shape)
            target = total[*place, ...]
            sums = part.array[: target.size].reshape(target.shape)
            np.sum(values, axis=summed, keepdims=True, out=sums)
            np.add(target, sums, out=target)

    return step


@primitive()
def reduce(call: CpuCall, a: Reduce) -> Step:
    return _reduce(call, a, a.y)


@primitive()
def reduce_gradient(call: CpuCall, a: ReduceGradient) -> Step:
    return _reduce(call, a, a.dw)
