"""Owns the update of weights from the factors of their gradient, which is then never in memory.

The gradient of an inner product's weights is a product of two small matrices, but as large as the
weights: to write and to read it can take as long as to compute it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...backends.backend import Backend
from ...backends.primitives import Program
from ...backends.tensor import Call, Step, Tensor, sequence
from ...graph.passes.editing import operands, owners
from ...net import Net
from .optimizer import Optimizer


def from_factors(net: Net, optimizer: Optimizer) -> tuple[dict[Call, Step], list[Step]]:
    """What to run instead of some calls of backward, which keep what the gradients of their
    weights are made of, and then the update. These gradients are NaN afterwards.

    Weights that several calls use stay as they are, and so does all if the update is not separable.
    """
    if not (optimizer.separable and net.replays):
        return {}, optimizer.steps
    calls = net.programs[1]
    uses = Counter(owner for call in calls for owner in owners(operands(call)))
    parameters = {each.blob.diff: number for number, each in enumerate(net.parameters)}
    starts = {parameter: (start, stop) for start, stop, parameter in net.arena.segments}
    instead: dict[Call, Step] = {}
    found: list[tuple[int, int, Step]] = []
    for call in calls:
        dw = call.writes.get("dw")
        if call.name != "inner_product_backward_filter" or dw not in parameters:
            continue
        number = parameters[dw]
        apart = uses[dw] == 1 and dw.whole is None and not call.accumulates
        if not apart or call.settings["transpose"] or not net.parameters[number].lr_mult:
            continue
        factors = [Tensor(call.reads[name].shape) for name in ("x", "dy")]
        if step := optimizer.from_factors(number, factors):
            instead[call] = _keep(net.backend, call, factors)
            found.append((*starts[net.parameters[number]], step))
    steps, done = [], 0
    for start, stop, step in sorted(found, key=lambda each: each[0]):
        steps += [optimizer.part(done, start), step]
        done = stop
    return instead, [*steps, optimizer.part(done, len(net.arena))] if found else optimizer.steps


def _keep(backend: Backend, call: Call, factors: list[Tensor]) -> Step:
    """What copies the factors of a gradient, and computes that of the bias."""
    x, dy, dw, db = call.reads["x"], call.reads["dy"], call.writes["dw"], call.writes.get("db")
    program = Program()
    for source, kept in zip((x, dy), factors, strict=True):
        backend.give_memory(kept)
        program.copy(source, kept)
    if db is not None:
        program.inner_product_backward_filter(x, dy, None, db, **call.settings)
    steps = backend.prepare(program.calls)
    for each in program.calls:
        for scratch in each.scratch:
            backend.give_memory(scratch)

    def mark() -> None:
        if not np.isnan(dw.array.flat[0]):
            backend.write(dw, np.nan)

    return sequence([*steps, mark])
