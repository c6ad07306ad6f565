"""The NumPy primitives of the solvers: update rules over flat buffers, sums of squares."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from ...formula import parse
from ...primitives import solvers as ops
from ...tensor import Run
from ..evaluate import Evaluate
from ..registry import Context, direct, primitive
from .formulas import flat, over_chunks

Segment = tuple[int, int, float, float]
DOT_CHUNK = 1 << 16


def merge_segments(segments: Sequence[Segment]) -> list[Segment]:
    """Join neighbours (start, stop, rate, decay) that touch and have the same multipliers."""
    merged: list[Segment] = []
    for start, stop, rate, decay in segments:
        if merged and merged[-1][1:] == (start, rate, decay):
            start = merged.pop()[0]
        merged.append((start, stop, rate, decay))
    return merged


@primitive()
def update(ctx: Context, a: ops.Update) -> Run:
    formula = a.formula
    gradient = "g"
    if "g" in parse(formula).writes:  # the gradients stay as they are
        gradient, formula = "gradient", f"g = gradient; {formula}"
    operands = ["w", gradient, *["h", "h2"][: len(a.history)]]
    tensors = [a.weights, a.gradients, *a.history]
    segments = merge_segments(a.segments) if a.sums is None else a.segments
    names = [*a.names, "rate", "decay", *(ops.SUMS if a.sums is not None else ())]

    def worker() -> Callable[[int, int], None]:
        evaluate = Evaluate(formula, operands, names, a.constants, dtype=ctx.backend.dtype)

        def work(start: int, stop: int) -> None:
            arrays = [flat(tensor) for tensor in tensors]
            given = flat(a.scalars).tolist()
            sums = itertools.repeat(()) if a.sums is None else a.sums.array.reshape(-1, 3).tolist()
            for (first, last, *multipliers), more in zip(segments, sums, strict=False):
                begin, end = max(first, start), min(last, stop)
                if begin < end:
                    evaluate(arrays, (*given, *multipliers, *more), begin, end)

        return work

    return over_chunks(ctx, a.weights.size, worker)


@direct()
def sum_of_squares(ctx: Context, a: ops.SumOfSquares) -> None:
    a.y.array.fill(_dot(flat(a.x), flat(a.x)))


@direct()
def segment_sums(ctx: Context, a: ops.SegmentSums) -> None:
    for row, (start, stop) in zip(a.y.array.reshape(-1, 3), a.segments, strict=True):
        x, g = flat(a.x)[start:stop], flat(a.g)[start:stop]
        row[:] = _dot(x, x), _dot(g, g), _dot(x, g)


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    cuts = [slice(start, start + DOT_CHUNK) for start in range(0, len(x), DOT_CHUNK)]
    return sum(float(np.dot(x[cut], y[cut])) for cut in cuts)
