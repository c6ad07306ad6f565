"""Owns `train --bucket_mb auto`: the first iterations are made with buckets of each size in turn,
all that follow with buckets of the size that took the least time.

These iterations train like any others: nothing is measured apart from what is to become faster.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ..backends.tensor import Step
from ..comm.create import CommConfig
from ..comm.job.job import Job
from ..comm.job.topology import Topology
from ..solvers.solver import Solver
from .buckets import ITEM, NetLayout, find_buckets
from .config import ParallelConfig
from .data_parallel import DataParallel

logger = logging.getLogger("osucaffe")

SIZES = tuple(4**power << 18 for power in range(6))
"""Bytes that are tried, beside all at once: 256 KB to 256 MB."""
ROUNDS = 3
"""Turns of each size: what else the machine does meanwhile is not to fall on one of them."""
WARM_UP, COUNT = 2, 4
"""Iterations of a turn that are not timed (a GPU captures its graph in the second), and that
are."""
EQUAL = 1.02
"""Sizes that take at most so many times as long as the best are as good: of these, the one nearest
to the default is taken, so that noise does not choose."""


class Tuned(DataParallel):
    """The ranks of a job as a solver's group; `config.bucket` is where they begin.

    clock: tells seconds, beside those of other ranks only in their differences.
    """

    def __init__(
        self,
        job: Job,
        topology: Topology,
        comm_config: CommConfig,
        config: ParallelConfig,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(job, topology, comm_config, config)
        self._default, self._clock = config.bucket, clock
        self._made: dict[tuple[bool, bool], Step] = {}
        self._turns: list[int] = []
        self._begun = 0.0
        self._times: list[float] = []
        self._found: dict[int, list[float]] = {}

    def attach(self, solver: Solver) -> None:
        """And find the sizes to try."""
        self._made.clear()
        self._times.clear()
        self._found.clear()
        super().attach(solver)
        sizes = list(candidates(solver.net, self._config))
        if len(sizes) < 2:
            logger.info("--bucket_mb auto: this net has only one possible bucket size")
            sizes = []
        self._turns = sizes * ROUNDS
        self._use(self._turns[0] if sizes else self._default)

    def step(self, solver: Solver, *, accumulate: bool, update: bool) -> Step:
        """One pass, with buckets of the size whose turn it is."""
        make = partial(super().step, solver, accumulate=accumulate, update=update)
        key = accumulate, update

        def step() -> None:
            if self._turns and not accumulate:
                self._begun = self._now()
            if key not in self._made:
                self._made[key] = make()
            self._made[key]()
            if self._turns and update:
                self._note(self._now() - self._begun)

        return step

    def _now(self) -> float:
        """When all that was enqueued so far has run."""
        with self.watch():
            self._solver.backend.synchronize()
        return self._clock()

    def _note(self, seconds: float) -> None:
        """An iteration took so long here; at the end of a turn the next one begins."""
        self._times.append(seconds)
        if len(self._times) < WARM_UP + COUNT:
            return
        slowest = map(max, zip(*self._job.gather(self._times[WARM_UP:]), strict=True))
        self._found.setdefault(self._turns.pop(0), []).extend(slowest)
        self._times.clear()
        # All ranks have gathered the same times, and so choose the same.
        self._use(self._turns[0] if self._turns else self._choose())

    def _use(self, size: int) -> None:
        """Let what follows have buckets of this size. What a rank alone has of weights and history,
        by the buckets so far, goes to all of them before."""
        if size == self._config.bucket:
            return
        self._synchronize_learned(history=True)
        self._made.clear()
        self._config = replace(self._config, bucket=size)
        self._exchange = self._make_exchange(self._solver)

    def _choose(self) -> int:
        medians = {size: statistics.median(times) for size, times in self._found.items()}
        chosen = choose(medians, self._default)
        logger.info("%s", describe(medians, chosen, self._solver.net))
        return chosen


def candidates(net: NetLayout, config: ParallelConfig) -> Iterator[int]:
    """The sizes, in bytes, that cut what travels of a net differently."""
    layerwise = config.aggregation == "layerwise"
    if not layerwise and config.propagation != "overlapped":
        return
    seen = []
    for size in (*SIZES, len(net.arena) * ITEM):
        buckets = find_buckets(net, size, frozen=not layerwise)
        if buckets not in seen:
            seen.append(buckets)
            yield size


def choose(seconds: Mapping[int, float], default: int) -> int:
    """The size that takes the least time; of those that are as good, the nearest to the default."""
    most = EQUAL * min(seconds.values())
    good = [size for size, each in seconds.items() if each <= most]
    return min(good, key=lambda size: abs(math.log(max(size, 1) / max(default, 1))))


def describe(seconds: Mapping[int, float], chosen: int, net: NetLayout) -> str:
    """What was found, and how to ask for it at once."""

    def name(size: int) -> str:
        return "all at once" if size >= net.arena.learned * ITEM else f"{size / 2**20:g} MB"

    tried = ", ".join(f"{name(size)} {1e3 * each:.3f}" for size, each in sorted(seconds.items()))
    return (
        f"--bucket_mb auto: chose {name(chosen)} (--bucket_mb {chosen / 2**20:g} begins with it); "
        f"an iteration took, in ms: {tried}; what is within {EQUAL - 1:.0%} is alike"
    )
