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


class Iteration:
    """Makes a solver's iterations, one at a time: knows its steps, and when it last displayed."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self._steps: dict[tuple[bool, bool], Step] = {}
        """What is replayed: a pass that (accumulates, is followed by the update)."""
        self._displayed = (0, time.perf_counter())
        """The iteration and the time of the last display."""

    def begin(self) -> None:
        """Iterations follow: the speed that a display tells is counted from here on."""
        self._displayed = (self._solver.iteration, time.perf_counter())

    def clear(self) -> None:
        """Let go of the steps: the net has changed, or no iterations follow."""
        self._steps.clear()

    def run(self, tracer: Tracer | None = None) -> None:
        """iter_size times forward and backward, then the update. tracer: traces them."""
        solver = self._solver
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
                self._step(accumulate=accumulate, update=update)()
            if wanted:
                solver.losses.note(net, part)
        if tracer and not show:
            tracer.update(self._update)
        if display:
            solver.losses.read()
            self._display(rate)
        if show:
            shown = debug.parameter_values(net)
            self._update()
            debug.show_update(net, shown)
        if param.clip_gradients >= 0 and display:
            solver.optimizer.log_clipping(param.clip_gradients)
        if solver.loss_scale and display:
            solver.loss_scale.log()

    def _step(self, *, accumulate: bool, update: bool) -> Step:
        """One forward and backward pass, and the update, as a step that the backend may replay."""
        key, solver = (accumulate, update), self._solver
        if key not in self._steps:
            self._steps[key] = solver.group.step(solver, accumulate=accumulate, update=update)
        return self._steps[key]

    def _update(self) -> None:
        """The update, outside such a step."""
        self._solver.group.exchange()
        self._solver.optimizer.run()
        self._solver.group.updated()

    def _display(self, rate: float) -> None:
        solver, (since, start) = self._solver, self._displayed
        now = time.perf_counter()
        self._displayed = (solver.iteration, now)
        net, group = solver.net, solver.group
        event = Display(
            solver.iteration,
            solver.param.max_iter,
            solver.loss,
            rate,
            speed=(solver.iteration - since) / (now - start),
            seconds=now - start,
            outputs=name_outputs(net, group.sum(read_outputs(net)) / group.size),
            records=solver.epochs.records(solver.iteration) if solver.epochs else 0,
            epoch=solver.epochs.epoch(solver.iteration) if solver.epochs else None,
        )
        log_display(event, solver.param.display)
        for observer in solver.observers:
            observer.on_display(event)
