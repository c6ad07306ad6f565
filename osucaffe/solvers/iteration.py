"""Owns one iteration of training: its passes, the update, and what a display tells of it.

The passes run as steps that the backend may replay; for a trace or `debug_info`, layer by layer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..backends.tensor import Step
from . import debug
from .observer import Display
from .report import log_display, name_outputs, read_outputs
from .tracer import Tracer

if TYPE_CHECKING:
    from .solver import Solver


def iterate(solver: Solver, tracer: Tracer | None = None) -> None:
    """iter_size times forward and backward, then the update. tracer: traces them."""
    param, net, group = solver.param, solver.net, solver.group
    display = solver.due(param.display)
    show = display and param.debug_info
    # Only what a display shows is noted, or the policy asks for.
    wanted = solver.policy.watches_loss or (
        param.display > 0 and (-solver.iteration % param.display < param.average_loss)
    )
    rate = solver.policy.rate(solver.iteration)
    solver.optimizer.set_rate(rate, solver.iteration, solver.policy.ahead)
    for part in range(param.iter_size):
        accumulate, update = part > 0, part == param.iter_size - 1
        if show:
            group.synchronize_weights()
            debug.forward_and_backward(net, accumulate=accumulate)
        elif tracer:
            before, after = group.overlap_hooks(accumulate=accumulate, update=update)
            tracer.forward_and_backward(net, before, after, accumulate=accumulate)
        else:
            _step(solver, accumulate=accumulate, update=update)()
        if wanted:
            solver.losses.note(net, part)
    if tracer and not show:
        tracer.update(lambda: _update(solver))
    if display:
        solver.losses.read()
        _display(solver, rate)
    if show:
        shown = debug.parameter_values(net)
        _update(solver)
        debug.show_update(net, shown)
    if param.clip_gradients >= 0 and display:
        solver.optimizer.log_clipping(param.clip_gradients)
    if solver.loss_scale and display:
        solver.loss_scale.log()


def _step(solver: Solver, *, accumulate: bool, update: bool) -> Step:
    """One forward and backward pass, and the update, as a step that the backend may replay."""
    key = accumulate, update
    if key not in solver.steps:
        solver.steps[key] = solver.group.step(solver, accumulate=accumulate, update=update)
    return solver.steps[key]


def _update(solver: Solver) -> None:
    """The update, outside such a step."""
    solver.group.exchange()
    solver.optimizer.run()
    solver.group.updated()


def _display(solver: Solver, rate: float) -> None:
    since, start = solver.displayed
    now = time.perf_counter()
    solver.displayed = (solver.iteration, now)
    net, group = solver.net, solver.group
    event = Display(
        solver.iteration,
        solver.param.max_iter,
        solver.loss,
        rate,
        speed=(solver.iteration - since) / (now - start),
        seconds=now - start,
        outputs=name_outputs(net, group.sum(read_outputs(net)) / group.size),
    )
    log_display(event, solver.param.display)
    for observer in solver.observers:
        observer.on_display(event)
