"""What the ranks run that bench_comm starts: all-reduces by different means, in turn.

Arguments: what to compare (host or hosts), then the largest array in bytes. Rank 0 prints one line
of JSON: for each size the microseconds of each way, medians over rounds of alternation.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from osucaffe.comm.create import CommConfig, make_communicator
from osucaffe.comm.job import find_job
from osucaffe.comm.topology import discover
from osucaffe.comm.tune import seconds

ROUNDS = 5
FLAT = ("ring", "halving_doubling", "recursive_doubling", "chain_binomial", "native")
Way = Callable[[Any], float]


def on_hosts(job: Any, levels: bool) -> dict[str, Way]:
    """Algorithms over MPI on host arrays; levels: with hierarchical."""
    topology = discover(job)
    wanted = {name: CommConfig("mpi", name) for name in FLAT} | {"auto": CommConfig("mpi")}
    if levels:
        wanted["hierarchical"] = CommConfig("hierarchical")

    def way(each: CommConfig) -> Way:
        comm = make_communicator(job, topology, each)
        return lambda array: seconds(job, comm, "all_reduce", array, budget=0.01)

    return {name: way(each) for name, each in wanted.items()}


def main() -> None:
    """Measure and print."""
    what, largest = sys.argv[1], int(sys.argv[2])
    job = find_job()
    with job.together():
        ways = on_hosts(job, what == "hosts")
        rows = []
        nbytes = 4
        while nbytes <= largest:
            array = np.zeros(nbytes // 4, np.float32)
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(ROUNDS):
                for name, way in ways.items():
                    times[name].append(way(array) * 1e6)
            row = {name: round(statistics.median(each), 1) for name, each in times.items()}
            rows.append({"bytes": nbytes} | row)
            nbytes *= 4
        if job.rank == 0:
            print(json.dumps(rows))


if __name__ == "__main__":
    main()
