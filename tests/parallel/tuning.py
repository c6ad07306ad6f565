"""What the ranks run that test_tuning.py starts: --bucket_mb auto, by clocks that tell what
they are told to, trains as a fixed size does, to the bit (a sum of two has no order)."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import Job
from osucaffe.comm.job.topology import discover
from osucaffe.parallel import tuning
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.parallel.tuning import WARM_UP, Tuned
from osucaffe.solvers import Solver

from .equivalence import ADAM, BATCH, SGD, job_with_data, make_solver, weights

SIZES = 512, 2048
"""Bytes: with all at once, three ways to cut the net."""
ROUNDS, COUNT = 2, 1
TUNING = (len(SIZES) + 1) * ROUNDS * (WARM_UP + COUNT)
SECONDS = [{512: 3.0, 2048: 1.0}, {512: 3.0, 2048: 5.0}]
"""On each of two ranks; all at once takes 4. The slowest rank counts: 512 is best."""
CASES = [
    (ParallelConfig(), SGD + " iter_size: 2 clip_gradients: 0.5"),
    (ParallelConfig(propagation="sharded"), ADAM),
    (ParallelConfig("blocking", "overlapped"), ADAM),
]


class Clock:
    """Tells that an iteration takes as long as its buckets are said to."""

    def __init__(self, rank: int) -> None:
        self.group: Tuned | None = None
        self._rank, self._now = rank, 0.0

    def __call__(self) -> float:
        assert self.group is not None
        self._now += SECONDS[self._rank].get(self.group._config.bucket, 4.0)
        return self._now


def make(job: Job, folder: Path, config: ParallelConfig, settings: str, *, auto: bool) -> Solver:
    clock = Clock(job.rank)
    given = job, discover(job), CommConfig(), config
    group = Tuned(*given, clock) if auto else DataParallel(*given)
    clock.group = group if isinstance(group, Tuned) else None
    prefix = f'snapshot_prefix: "{folder}/run"'
    return make_solver(folder / "lmdb", BATCH, f"{settings} {prefix}", group=group)


def check(job: Job, folder: Path, config: ParallelConfig, settings: str) -> None:
    """A snapshot on the way goes on as well, by any size."""
    auto = make(job, folder, config, settings, auto=True)
    auto.step(TUNING // 2)
    auto.snapshot()
    job.barrier()
    auto.step(TUNING)
    assert auto.group._config.bucket == 512  # type: ignore[attr-defined]
    fixed = make(job, folder, config, settings, auto=False)
    fixed.step(TUNING // 2 + TUNING)
    resumed = make(job, folder, config, settings, auto=False)
    resumed.restore(folder / f"run_iter_{TUNING // 2}.solverstate")
    resumed.step(TUNING)
    for one, other, third in zip(weights(auto), weights(fixed), weights(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)
    for solver in auto, fixed, resumed:
        solver.group.check("in the test")
        solver.close()


def main() -> None:
    tuning.SIZES, tuning.TURNS, tuning.COUNT = SIZES, ROUNDS, COUNT
    with job_with_data() as (job, folder):
        if job.rank == 0:
            logging.basicConfig(level=logging.INFO)
        for config, settings in CASES:
            try:
                check(job, folder, config, settings)
            except AssertionError as error:
                raise AssertionError(f"{config} {settings}") from error
    print(f"rank {job.rank}: tuned alike\n", end="")


if __name__ == "__main__":
    main()
