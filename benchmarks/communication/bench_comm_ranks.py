"""What the ranks run that bench_comm starts: each collective by different means, in turn.

Arguments: what to compare (host or hosts), then the largest array in bytes. Rank 0 prints one line
of JSON: for each operation and size the microseconds of each way, medians over rounds of
alternation.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from osucaffe.comm.algorithms import ALGORITHMS, OPERATIONS, Operation, part
from osucaffe.comm.communicator import DONE, Handle
from osucaffe.comm.config import CommConfig
from osucaffe.comm.create import make_communicator
from osucaffe.comm.job.job import find_job
from osucaffe.comm.job.topology import discover
from osucaffe.comm.tuning.measure import seconds
from osucaffe.comm.tuning.table import NATIVE

ROUNDS = 5
Way = Callable[[Any], float]


class NativeScatter:
    """MPI's own reduce-scatter, which no communicator uses: it gives the part elsewhere."""

    def __init__(self, job: Any) -> None:
        self._world, self._mpi = job.world, job.mpi

    def reduce_scatter(self, array: np.ndarray) -> Handle:
        """Sum all arrays; return when this rank has its part."""
        ranks = self._world.size
        spans = [part(array.size, ranks, rank) for rank in range(ranks)]
        counts = [stop - start for start, stop in spans]
        own = array[slice(*spans[self._world.rank])]
        into = np.empty_like(own)
        self._world.Reduce_scatter(array, [into, self._mpi.FLOAT], counts, self._mpi.SUM)
        own[:] = into
        return DONE


def on_hosts(job: Any, operation: Operation, levels: bool) -> dict[str, Way]:
    """Algorithms over MPI on host arrays; levels: with hierarchical."""
    topology = discover(job)
    names = [*ALGORITHMS[operation], *(["native"] if operation in NATIVE else []), "auto"]
    wanted = {name: CommConfig("mpi", name) for name in names}
    if levels:
        wanted["hierarchical"] = CommConfig("hierarchical")

    def way(comm: Any) -> Way:
        return lambda array: seconds(job, comm, operation, array, budget=0.01)

    made = {name: way(make_communicator(job, topology, each)) for name, each in wanted.items()}
    if operation not in NATIVE:
        made["native"] = way(NativeScatter(job))
    return made


def measure(ways: dict[str, Way], largest: int) -> Iterator[dict[str, Any]]:
    """A row for each size."""
    nbytes = 4
    while nbytes <= largest:
        array = np.zeros(nbytes // 4, np.float32)
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                times[name].append(way(array) * 1e6)
        row = {name: round(statistics.median(each), 1) for name, each in times.items()}
        yield {"bytes": nbytes} | row
        nbytes *= 4


def main() -> None:
    """Measure and print."""
    what, largest = sys.argv[1], int(sys.argv[2])
    job = find_job()
    with job.together():
        rows = {
            operation: list(measure(on_hosts(job, operation, what == "hosts"), largest))
            for operation in OPERATIONS
        }
        if job.rank == 0:
            print(json.dumps(rows))


if __name__ == "__main__":
    main()
