"""The recording of `train --trace`: a few iterations, layer by layer.

They run without the graph that replays other iterations, with the same results. After each of
forward, backward and update the host waits for the device. Communication that overlaps with them
has a separate track.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ..backends.backend import Backend
from ..backends.tensor import Run
from ..graph.capture import run_at
from ..net import Net
from ..trace import Trace

logger = logging.getLogger("osucaffe")

WARM_UP = 5
"""Iterations before those that are traced, if the run has enough."""
TRACED = 3

Part = tuple[str, str]
"""The name of a span and its category."""
Mark = Callable[[int], None]
"""Called after each part."""


class Tracer:
    """Traces a solver's iterations WARM_UP to WARM_UP + TRACED - 1, counted from where it starts.

    path: of the trace; other ranks than 0 write next to it (out.rank1.json).
    """

    def __init__(self, path: str | Path, backend: Backend, rank: int = 0) -> None:
        path = Path(path)
        if rank:
            path = path.with_suffix(f".rank{rank}{path.suffix}")
        self._trace = Trace(path, rank)
        self._timer = backend.timer()
        self._iterations = range(0)
        self._done: list[int] = []

    def plan(self, begin: int, end: int) -> None:
        """Announce the iterations begin .. end - 1."""
        if not self._iterations:
            first = max(begin, min(begin + WARM_UP, end - TRACED))
            self._iterations = range(first, min(first + TRACED, end))

    def due(self, iteration: int) -> bool:
        """Whether this iteration is to be traced."""
        return iteration in self._iterations

    @contextlib.contextmanager
    def iteration(self, number: int) -> Iterator[None]:
        """The span of an iteration. The last one writes the trace."""
        with self._trace.running(), self._trace.span(f"iteration {number}", "iteration"):
            yield
        self._done.append(number)
        if number == self._iterations[-1]:
            self.write()

    def write(self) -> None:
        """Write the trace, once."""
        if self._done:
            self._trace.write()
            logger.info(
                "Trace of iterations %d to %d, which ran step by step: %s",
                self._done[0],
                self._done[-1],
                self._trace.path,
            )
            self._done = []

    def forward_and_backward(
        self, net: Net, before: Mapping[int, Run], after: Mapping[int, Run], *, accumulate: bool
    ) -> None:
        """Run both passes; a span for each, and within it for each layer.

        before, after: what to run before the forward, and after the backward, of some layers.
        """

        def forward(mark: Mark) -> None:
            run_at(before, 0)

            def behind(index: int) -> None:
                mark(index)
                run_at(before, index + 1)

            net.forward(after=behind)

        def backward(mark: Mark) -> None:
            def behind(index: int) -> None:
                mark(index)
                run_at(after, index)

            net.backward(accumulate=accumulate, after=behind)

        parts = [(n.layer.label, "forward" if n.bottom else "data") for n in net.nodes]
        self._pass("forward", [*parts, ("total", "forward")], forward)
        parts = [(node.layer.label, "backward") for node in reversed(net.nodes)]
        self._pass("backward", parts, backward)

    def update(self, run: Callable[[], None]) -> None:
        """Run the exchange of gradients and the update; a span for both."""

        def once(after: Mark) -> None:
            run()
            after(0)

        self._pass("update", [("parameters", "update")], once)

    def _pass(self, name: str, parts: Sequence[Part], run: Callable[[Mark], None]) -> None:
        """run(after) calls `after` after each part."""
        trace, timer = self._trace, self._timer
        rest = iter(parts)
        timer.begin()
        with trace.span(name, name), contextlib.ExitStack() as stack:
            stack.enter_context(trace.span(*next(rest)))

            def after(index: int) -> None:
                stack.pop_all().close()
                timer.mark()
                if part := next(rest, None):
                    stack.enter_context(trace.span(*part))

            run(after)
        times = timer.read()
        trace.read_events(timer.time_of)
        if timer.track:
            trace.add(name, name, times[0], times[-1], timer.track)
            for part, start, end in zip(parts, times, times[1:], strict=False):
                trace.add(*part, start, end, timer.track)
