"""The tuning of data-parallel training on the present ranks: the size of buckets.

`train --bucket_mb auto`: the first iterations are made with buckets of each size in turn, all that
follow with buckets of the size that took the least time. These iterations train like any others:
measuring costs no extra work.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..comm.config import CommConfig
from ..comm.job.job import Job
from ..comm.job.topology import Topology
from ..proto import caffe_pb2
from ..solvers.process_group import SolverView
from ..solvers.solver import Solver
from .buckets import ITEM, Layout, NetLayout, find_buckets
from .config import ParallelConfig
from .data_parallel import DataParallel

logger = logging.getLogger("osucaffe")

SIZES = tuple(4**power << 18 for power in range(6))
"""Bucket sizes that are tried, besides all at once: 256 KB to 256 MB."""
TURNS = 3
"""Turns of each size, so that other load on the machine does not affect only one of them."""
WARM_UP, COUNT = 2, 4
"""Iterations of a turn that are untimed (a GPU captures its graph in the second), and timed."""
EQUAL = 1.02
"""Sizes that take at most this many times as long as the best are as good: of these, the one
nearest to the default is taken, so that noise does not choose."""


class Tuned(DataParallel):
    """The ranks of a job as a solver's group, tuned from `config.bucket` on.

    clock: gives seconds; only differences are compared with other ranks.
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
        self._turns: list[int] = []
        self._begun = 0.0
        self._times: list[float] = []
        self._times_by_size: dict[int, list[float]] = {}

    def attach(self, solver: SolverView) -> None:
        """And find the sizes to try."""
        self._times.clear()
        self._times_by_size.clear()
        super().attach(solver)
        sizes = list(candidates(solver.net, self._config))
        if len(sizes) < 2:
            logger.info("--bucket_mb auto: this net has only one possible bucket size")
            sizes = []
        self._turns = sizes * TURNS
        self._use(self._turns[0] if sizes else self._default)

    def _pass_begins(self, *, accumulate: bool, update: bool) -> None:
        if self._turns and not accumulate:
            self._begun = self._now()

    def _pass_ends(self, *, update: bool) -> None:
        if self._turns and update:
            self._note(self._now() - self._begun)

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
        self._times_by_size.setdefault(self._turns.pop(0), []).extend(slowest)
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
        medians = {size: statistics.median(times) for size, times in self._times_by_size.items()}
        chosen = choose_size(medians, self._default)
        logger.info("%s", describe_sizes(medians, chosen, self._solver.net))
        return chosen


def candidates(net: Layout, config: ParallelConfig) -> Iterator[int]:
    """The sizes, in bytes, that cut what travels of a net differently."""
    layerwise = config.aggregation == "layerwise"
    if not layerwise and config.propagation != "overlapped":
        return
    tried = []
    for size in (*SIZES, len(net.arena) * ITEM):
        buckets = find_buckets(net, size, frozen=not layerwise)
        if buckets not in tried:
            tried.append(buckets)
            yield size


def choose_size(seconds: Mapping[int, float], default: int) -> int:
    """The size that takes the least time; of those that are as good, the nearest to the default."""
    most = EQUAL * min(seconds.values())
    good = [size for size, duration in seconds.items() if duration <= most]
    return min(good, key=lambda size: abs(math.log(max(size, 1) / max(default, 1))))


def describe_sizes(seconds: Mapping[int, float], chosen: int, net: NetLayout) -> str:
    """The result, and the option that selects it directly."""

    def name(size: int) -> str:
        return "all at once" if size >= net.arena.learned * ITEM else f"{size / 2**20:g} MB"

    tried = ", ".join(f"{name(size)} {1e3 * took:.3f}" for size, took in sorted(seconds.items()))
    return (
        f"--bucket_mb auto: chose {name(chosen)} (--bucket_mb {chosen / 2**20:g} begins with it); "
        f"an iteration took, in ms: {tried}; what is within {EQUAL - 1:.0%} is alike"
    )


_LOUD = (
    *("test_net", "test_net_param", "test_iter", "test_state", "test_interval"),
    *("display", "debug_info", "snapshot", "snapshot_after_train"),
)
"""Settings that make a solver do more than train (test_iter: how often `net` tests)."""


def quieten(param: caffe_pb2.SolverParameter) -> caffe_pb2.SolverParameter:
    """The settings without displays, tests and snapshots."""
    quiet = caffe_pb2.SolverParameter()
    quiet.CopyFrom(param)
    for field in _LOUD:
        quiet.ClearField(field)
    return quiet


def seconds_of_iteration(workers: Job, solver: Solver, seconds: float) -> float:
    """How long the slowest rank takes for an iteration, measured for about that many seconds."""
    solver.step(3)  # libraries choose, data starts to come, a GPU captures its graph
    once = _seconds(workers, solver, 1)
    count = max(1, round(seconds / 3 / once))
    return statistics.median(_seconds(workers, solver, count) / count for _ in range(3))


def _seconds(workers: Job, solver: Solver, iterations: int) -> float:
    """How long that many take on the slowest rank."""
    workers.barrier()
    begun = time.perf_counter()
    solver.step(iterations)
    solver.group.synchronize_weights()
    solver.backend.synchronize()
    return float(max(workers.gather(time.perf_counter() - begun)))
