"""What the ranks run that test_job.py starts: it tells how many arrays each host sends in an
all-reduce, by hierarchical and by flat algorithms."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.comm.config import CommConfig
from osucaffe.comm.create import make_communicator
from osucaffe.comm.job.job import find_job
from osucaffe.comm.job.topology import discover

NBYTES = 2 << 20
FLAT = ("ring", "halving_doubling", "recursive_doubling", "binomial")


def sent() -> int:
    """The bytes that have left this host."""
    (line,) = re.findall(r"^ *eth0: *(.*)$", Path("/proc/net/dev").read_text(), re.MULTILINE)
    return int(line.split()[8])


def main() -> None:
    job = find_job()
    with job.together():
        topology = discover(job)
        wanted = {name: CommConfig("mpi", name) for name in FLAT}
        wanted["hierarchical"] = CommConfig("hierarchical")
        array = np.ones(NBYTES // 4, np.float32)
        result: dict[str, Any] = {}
        for name, each in wanted.items():
            comm = make_communicator(job, topology, each)
            job.barrier()
            before = sent()
            comm.all_reduce(array).wait()
            job.barrier()
            result[name] = max(job.gather(sent() - before)) / NBYTES
            assert (array == job.size).all(), name
            array.fill(1)
        result["hosts"] = [[each.hostname for each in host] for host in topology.hosts]
        if job.rank == 0:
            print(json.dumps(result))


if __name__ == "__main__":
    main()
