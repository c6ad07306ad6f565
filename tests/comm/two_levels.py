"""What the ranks run that test_hosts.py starts: hierarchical against flat algorithms, in turn."""

from __future__ import annotations

import json
import statistics
from typing import Any

import numpy as np

from osucaffe.comm.create import Wanted, make_communicator
from osucaffe.comm.job import find_job
from osucaffe.comm.topology import discover
from osucaffe.comm.tune import seconds

NBYTES = 2 << 20
FLAT = ("ring", "halving_doubling", "recursive_doubling", "binomial")


def main() -> None:
    job = find_job()
    with job.together():
        topology = discover(job)
        wanted = {name: Wanted("mpi", name) for name in FLAT}
        wanted["hierarchical"] = Wanted("hierarchical")
        made = {name: make_communicator(job, topology, each) for name, each in wanted.items()}
        array = np.ones(NBYTES // 4, np.float32)
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(3):
            for name, comm in made.items():
                array.fill(1)
                comm.all_reduce(array).wait()
                assert (array == job.size).all(), name
                times[name].append(seconds(job, comm, "all_reduce", array, budget=0))
        result: dict[str, Any] = {name: statistics.median(each) for name, each in times.items()}
        result["hosts"] = [[each.hostname for each in host] for host in topology.hosts]
        if job.rank == 0:
            print(json.dumps(result))


if __name__ == "__main__":
    main()
