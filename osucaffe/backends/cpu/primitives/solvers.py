"""Owns the NumPy primitives of the solvers: update rules over flat buffers, sums of squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...formula import parse
from ...primitives import solvers as ops
from ...tensor import Step
from ..evaluate import Evaluate
from ..registry import CpuCall, direct, primitive
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
def update(call: CpuCall, a: ops.Update) -> Step:
    formula = a.formula
    gradient = "g"
    if "g" in parse(formula).writes:  # the gradients stay as they are
        gradient, formula = "gradient", f"g = gradient; {formula}"
    operands = ["w", gradient, *["h", "h2"][: len(a.history)]]
    tensors = [a.weights, a.gradients, *a.history]
    merged = merge_segments(a.segments)

    def worker() -> Callable[[int, int], None]:
        evaluate = Evaluate(
            formula, operands, [*a.names, "rate", "decay"], a.constants, dtype=call.backend.dtype
        )

        def work(start: int, stop: int) -> None:
            arrays = [flat(tensor) for tensor in tensors]
            given = flat(a.scalars).tolist()
            for first, last, rate, decay in merged:
                begin, end = max(first, start), min(last, stop)
                if begin < end:
                    evaluate(arrays, (*given, rate, decay), begin, end)

        return work

    return over_chunks(call, a.weights.size, worker)


@direct()
def sum_of_squares(call: CpuCall, a: ops.SumOfSquares) -> None:
    source, total = flat(a.x), 0.0
    for start in range(0, len(source), DOT_CHUNK):
        piece = source[start : start + DOT_CHUNK]
        total += float(np.dot(piece, piece))
    a.y.array.fill(total)
