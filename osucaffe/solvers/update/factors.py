"""Owns the update of weights from the factors of their gradient, which is then never in memory.

The gradient of an inner product's weights is a product of two small matrices, but as large as the
weights: to write and to read it can take as long as to compute it.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...backends.backend import Backend
from ...backends.primitives.movement import Copy
from ...backends.primitives.products import InnerProductBackwardFilter
from ...backends.primitives.recording import Primitive
from ...backends.tensor import Run, Tensor, sequence
from ...graph.passes.editing import operands, owners
from ...net import Net
from .optimizer import Optimizer


def from_factors(net: Net, optimizer: Optimizer) -> tuple[dict[Primitive, Run], list[Run]]:
    """What to run instead of some calls of backward, which keep what the gradients of their
    weights are made of, and then the update. These gradients are NaN afterwards.

    Weights that several calls use stay as they are, and so does all if the update is not separable.
    """
    if not (optimizer.separable and net.replays):
        return {}, optimizer.steps
    calls = net.programs[1]
    uses = Counter(owner for call in calls for owner in owners(operands(call)))
    segments = {each[2].blob.diff: each for each in net.arena.segments}
    instead: dict[Primitive, Run] = {}
    found: dict[tuple[int, int], Run] = {}
    for call in calls:
        if not isinstance(call, InnerProductBackwardFilter) or call.dw not in segments:
            continue
        start, stop, parameter = segments[call.dw]
        shared = uses[call.dw] > 1 or call.dw.whole is not None or call.accumulates
        if shared or call.transpose or not parameter.lr_mult:
            continue
        x, dy = Tensor(call.x.shape), Tensor(call.dy.shape)
        if step := optimizer.part_from(start, stop, [x, dy, parameter.blob.data]):
            found[start, stop] = step
            instead[call] = _keep(net.backend, optimizer, call, x, dy)
    steps, done = [], 0
    for start, stop in sorted(found):
        steps += [optimizer.part(done, start), found[start, stop]]
        done = stop
    return instead, [*steps, optimizer.part(done, len(net.arena))] if found else optimizer.steps


def _keep(
    backend: Backend, optimizer: Optimizer, call: InnerProductBackwardFilter, x: Tensor, dy: Tensor
) -> Run:
    """What copies the factors of a gradient to x and dy, and computes that of the bias."""
    dw = call.dw
    assert dw is not None
    calls: list[Primitive] = [Copy(call.x, x), Copy(call.dy, dy)]
    for kept in x, dy:
        backend.give_memory(kept)
    if call.db is not None:
        calls.append(call.changed(dw=None, scratch=[]))

    def mark() -> None:
        if not np.isnan(dw.array.flat[0]):
            dw.array.fill(np.nan)

    return sequence([*map(optimizer.prepare, calls), mark])
