"""Owns the NumPy primitives that repeat small tensors against large ones: broadcast and reduce."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from string import ascii_lowercase

import numpy as np

from ..tensor import Shape, Step, Tensor
from .elementwise import OUTPUTS
from .evaluate import CHUNK, Evaluate
from .registry import CpuCall, primitive


class _Grid:
    """The shape that tensors have together, in as few axes as will do, walked in pieces.

    extents: the merged axes. summed: for each, whether it is one of `axes`. A piece is a range of
    axis `cut`, at one position on the axes before it, and all of those behind it.
    """

    def __init__(self, tensors: Sequence[Tensor], axes: Sequence[int] = ()) -> None:
        shape = np.broadcast_shapes(*[tensor.shape for tensor in tensors])
        axes = [axis % len(shape) for axis in axes]
        self.extents: list[int] = []
        marks: list[tuple[bool, tuple[bool, ...]]] = []
        for axis, extent in enumerate(shape):
            mark = (axis in axes, tuple(tensor.shape[axis] != 1 for tensor in tensors))
            if extent == 1:
                continue
            if marks and marks[-1] == mark:
                self.extents[-1] *= extent
            else:
                self.extents.append(extent)
                marks.append(mark)
        if not marks:
            self.extents, marks = [1], [(False, (True,) * len(tensors))]
        self.summed = [mark[0] for mark in marks]
        self.shapes = [
            tuple(n if mark[1][i] else 1 for n, mark in zip(self.extents, marks, strict=True))
            for i in range(len(tensors))
        ]
        behind = [math.prod(self.extents[axis + 1 :]) for axis in range(len(self.extents))]
        self.cut = next(axis for axis, size in enumerate(behind) if size <= CHUNK)
        self.rest = tuple(self.extents[self.cut + 1 :])
        self.length = min(max(1, CHUNK // behind[self.cut]), self.extents[self.cut])

    def arrays(self, tensors: Sequence[Tensor]) -> list[np.ndarray]:
        """The tensors' arrays, repeated (without copying) to the merged extents."""
        return [
            np.broadcast_to(tensor.array.reshape(shape), self.extents)
            if math.prod(shape) != math.prod(self.extents)
            else tensor.array.reshape(shape)
            for tensor, shape in zip(tensors, self.shapes, strict=True)
        ]

    def parts(self, call: CpuCall) -> list[tuple[range, range]]:
        """For each thread: its positions before the cut, and its part of the axis that is cut."""
        outer, along = math.prod(self.extents[: self.cut]), self.extents[self.cut]
        count = len(call.backend.workers.ranges(math.prod(self.extents)))
        if outer >= count:
            edges = [outer * i // count for i in range(count + 1)]
            return [(range(*pair), range(along)) for pair in itertools.pairwise(edges)]
        edges = [along * i // count for i in range(count + 1)]
        return [(range(outer), range(*pair)) for pair in itertools.pairwise(edges)]

    def position(self, flat: int) -> Shape:
        """The position on the axes before the cut."""
        return tuple(int(i) for i in np.unravel_index(flat, self.extents[: self.cut] or (1,)))[
            : self.cut
        ]


def _evaluate(
    call: CpuCall, text: str, operands: list[str], constants: dict[str, float] | None, grid: _Grid
) -> Evaluate:
    return Evaluate(
        text, operands, (), constants,
        dtype=call.backend.dtype, length=grid.length, rest=grid.rest, shared=True,
    )  # fmt: skip


@primitive()
def broadcast(
    call: CpuCall,
    inputs: list[Tensor],
    outputs: list[Tensor],
    *,
    formula: str,
    constants: dict[str, float] | None = None,
) -> Step:
    tensors = [*inputs, *outputs]
    names = [*ascii_lowercase[: len(inputs)], *OUTPUTS[: len(outputs)]]
    grid = _Grid(tensors)

    def work(evaluate: Evaluate, outer: range, along: range) -> None:
        arrays = grid.arrays(tensors)
        for flat in outer:
            position = grid.position(flat)
            evaluate([array[position] for array in arrays], (), along.start, along.stop)

    return _threads(
        call,
        [
            partial(work, _evaluate(call, formula, names, constants, grid), *part)
            for part in grid.parts(call)
        ],
    )


@primitive()
def reduce(
    call: CpuCall,
    inputs: list[Tensor],
    y: Tensor,
    *,
    formula: str,
    axes: Sequence[int],
    constants: dict[str, float] | None = None,
) -> Step:
    names = [*ascii_lowercase[: len(inputs)], OUTPUTS[0]]
    grid = _Grid(inputs, axes)
    kept = [1 if s else n for n, s in zip(grid.extents, grid.summed, strict=True)]
    along_summed = grid.summed[grid.cut]
    inside = tuple(i for i, summed in enumerate(grid.summed[grid.cut :]) if summed)
    tasks, totals = [], []

    def work(
        evaluate: Evaluate,
        values: np.ndarray,
        part: np.ndarray,
        total: np.ndarray,
        outer: range,
        along: range,
    ) -> None:
        total.fill(0)
        arrays = grid.arrays(inputs)
        for flat in outer:
            position = grid.position(flat)
            pieces = [array[position] for array in arrays]
            target = total[
                tuple(0 if s else i for i, s in zip(position, grid.summed, strict=False))
            ]
            for begin in range(along.start, along.stop, grid.length):
                end = min(begin + grid.length, along.stop)
                size = end - begin
                evaluate([*[each[begin:end] for each in pieces], values[:size]], (), 0, size)
                slot = part if along_summed else part[:size]
                np.add.reduce(
                    values[:size], axis=inside, dtype=np.float64, out=slot, keepdims=True
                )
                slot_target = target if along_summed else target[begin:end]
                np.add(slot_target, slot, out=slot_target)

    for outer, along in grid.parts(call):
        values = np.empty((grid.length, *grid.rest), call.backend.dtype)
        part = np.empty((1 if along_summed else grid.length, *kept[grid.cut + 1 :]))
        totals.append(np.empty(kept))
        evaluate = _evaluate(call, formula, names, constants, grid)
        tasks.append(partial(work, evaluate, values, part, totals[-1], outer, along))
    run = _threads(call, tasks)

    def step() -> None:
        run()
        for total in totals[1:]:
            np.add(totals[0], total, out=totals[0])
        np.copyto(y.array, totals[0].reshape(y.shape), casting="same_kind")

    return step


@primitive()
def reduce_gradient(
    call: CpuCall,
    inputs: list[Tensor],
    dw: Tensor,
    *,
    formula: str,
    axes: Sequence[int],
    constants: dict[str, float] | None = None,
) -> Step:
    return reduce(call, inputs, dw, formula=formula, axes=axes, constants=constants)


def _threads(call: CpuCall, tasks: list[Callable[[], None]]) -> Step:
    def step() -> None:
        call.backend.workers.run(tasks)

    return step
