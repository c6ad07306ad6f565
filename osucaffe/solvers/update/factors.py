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
    segments = {each[2].blob.diff: each for each in net.arena.segments}
    instead: dict[Call, Step] = {}
    found: dict[tuple[int, int], Step] = {}
    for call in calls:
        dw = call.writes.get("dw")
        if call.name != "inner_product_backward_filter" or dw not in segments:
            continue
        start, stop, parameter = segments[dw]
        shared = uses[dw] > 1 or dw.whole is not None or call.accumulates
        if shared or call.settings["transpose"] or not parameter.lr_mult:
            continue
        x, dy = (Tensor(call.reads[name].shape) for name in ("x", "dy"))
        if step := optimizer.part_from(start, stop, [x, dy, parameter.blob.data]):
            found[start, stop] = step
            instead[call] = _keep(net.backend, optimizer, call, x, dy)
    steps, done = [], 0
    for start, stop in sorted(found):
        steps += [optimizer.part(done, start), found[start, stop]]
        done = stop
    return instead, [*steps, optimizer.part(done, len(net.arena))] if found else optimizer.steps


def _keep(backend: Backend, optimizer: Optimizer, call: Call, x: Tensor, dy: Tensor) -> Step:
    """What copies the factors of a gradient to x and dy, and computes that of the bias."""
    dw, db = call.writes["dw"], call.writes.get("db")
    program = Program()
    for name, kept in ("x", x), ("dy", dy):
        backend.give_memory(kept)
        program.copy(call.reads[name], kept)
    if db is not None:
        program.inner_product_backward_filter(**call.reads, dw=None, db=db, **call.settings)

    def mark() -> None:
        if not np.isnan(dw.array.flat[0]):
            dw.array.fill(np.nan)

    return sequence([*map(optimizer.prepare, program.calls), mark])
