"""Owns the measuring of what a cluster's file says: links, and how fast ranks add."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from osucaffe.comm.create import CommConfig, make_communicator
from osucaffe.comm.host import HostMath
from osucaffe.comm.topology import Topology

PINGS = (64, 16 << 10, 256 << 10, 1 << 20, 4 << 20)
REPEAT = 18
LATE = 0.4


def links(job: Any, topology: Topology) -> dict[str, Any]:
    """One-way microseconds by bytes between the first and the last rank, the same of what was sent
    before it was wanted, and bytes that a rank adds in a second."""
    comm = make_communicator(job, topology, CommConfig("mpi"))
    found: dict[str, Any] = {"ping": {nbytes: ping(job, comm, nbytes) for nbytes in PINGS}}
    found["late"] = {nbytes: late(job, comm, nbytes) for nbytes in PINGS}
    found["adding"] = float(np.mean(job.gather(adding())))
    comm.close()
    return found


def ping(job: Any, comm: Any, nbytes: int) -> float:
    """Microseconds one way, between the first and the last rank."""
    array, times, last = np.zeros(nbytes // 4, np.float32), [], job.size - 1
    for _ in range(REPEAT):
        job.barrier()
        start = time.perf_counter()
        if job.rank == 0:
            comm.transfer(array, to=last)
            comm.transfer(array, source=last)
        elif job.rank == last:
            comm.transfer(array, source=0)
            comm.transfer(array, to=0)
        times.append((time.perf_counter() - start) / 2 * 1e6)
    return min(times)


def late(job: Any, comm: Any, nbytes: int) -> float:
    """Microseconds that the last rank receives what the first one has sent LATE seconds before."""
    array, times = np.zeros(nbytes // 4, np.float32), []
    for _ in range(3):
        job.barrier()
        if job.rank == 0:
            comm.transfer(array, to=job.size - 1)
        elif job.rank == job.size - 1:
            time.sleep(LATE)
            start = time.perf_counter()
            comm.transfer(array, source=0)
            times.append((time.perf_counter() - start) * 1e6)
    return float(min(job.gather(min(times, default=np.inf))))


def adding() -> float:
    """Bytes that this rank adds in a second."""
    math, array = HostMath(), np.zeros(1 << 20, np.float32)
    other, times = np.zeros_like(array), []
    for _ in range(15):
        start = time.perf_counter()
        math.add(array, other)
        times.append(time.perf_counter() - start)
    return float(array.nbytes / min(times))
