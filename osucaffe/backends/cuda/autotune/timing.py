"""The timing of steps on the device: short ones as graphs, as they run in training."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

from ...tensor import sequence
from ..gpu import Gpu
from ..runtime.launch import captured

TRIALS = 3
"""Times that a graph of runs is on the clock, if the first leaves it a chance to be the best."""
BEHIND = 1.05
"""What is that many times as slow as the best has none."""
GRAPHED, MIN_RUNS, MAX_RUNS = 0.25, 2, 16
"""Milliseconds that such a graph should take, and how many runs may be in it."""
BRIEF = 0.5
"""Milliseconds: what takes no longer is timed as a graph: launched one by one, even kernels of
30 us wait for the host, which takes 10 to 20 us for each. Of what takes longer, SINGLE runs count:
a net of large layers would spend seconds on more."""
SINGLE = 2


def once(backend: Gpu, run: Callable[[], None]) -> float:
    """Milliseconds of one run."""
    return _elapsed(backend, [run])[0]


def time_of(backend: Gpu, run: Callable[[], None], first: float, best: float) -> float:
    """Milliseconds of one run among many. first: what one has just taken; best: of others."""
    if first > BRIEF:
        return min(first, *_elapsed(backend, [run] * SINGLE))
    times = max(MIN_RUNS, min(MAX_RUNS, math.ceil(GRAPHED / max(first, 1e-3))))
    graph = captured(backend.stream, sequence([run] * times))
    graph.launch(backend.stream)  # keeps the device busy while the host comes to the next
    launch = functools.partial(graph.launch, backend.stream)
    taken = once(backend, launch)
    if taken <= BEHIND * best * times:
        taken = min(taken, *_elapsed(backend, [launch] * (TRIALS - 1)))
    return taken / times


def _elapsed(backend: Gpu, runs: Sequence[Callable[[], None]]) -> list[float]:
    """Milliseconds of each on the device, one after the other."""
    event = backend.cupy.cuda.Event
    events = [event() for _ in range(len(runs) + 1)]
    events[0].record(backend.stream)
    for run, end in zip(runs, events[1:], strict=True):
        run()
        end.record(backend.stream)
    events[-1].synchronize()
    between = backend.cupy.cuda.get_elapsed_time
    return [float(between(begin, end)) for begin, end in itertools.pairwise(events)]
