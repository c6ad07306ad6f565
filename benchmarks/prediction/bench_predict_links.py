"""The measuring of what a cluster's file says: links, and how fast ranks add."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from osucaffe.comm.algorithms import Step, Transfer
from osucaffe.comm.config import CommConfig
from osucaffe.comm.create import make_communicator
from osucaffe.comm.host import HostMath
from osucaffe.comm.job.topology import Topology

STEPS = (64, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
REPEAT = 9
LATE, LATE_SIZES = 1.0, (64 << 10, 1 << 20, 4 << 20)


def links(job: Any, topology: Topology) -> dict[str, Any]:
    """Microseconds by bytes of a step in which each rank sends to one and receives from another,
    the same of what was sent before it was wanted, and bytes that a rank adds in a second."""
    comm = make_communicator(job, topology, CommConfig("mpi", "ring"))
    found: dict[str, Any] = {"step": {nbytes: step(job, comm, nbytes) for nbytes in STEPS}}
    found["late"] = {nbytes: late(job, comm, nbytes) for nbytes in LATE_SIZES}
    found["adding"] = float(np.mean(job.gather(adding())))
    comm.close()
    return found


def step(job: Any, comm: Any, nbytes: int) -> float:
    """Microseconds of a step of a ring: all ranks send and receive at once, as they do in most
    operations. (What one message takes one way is less: the acknowledgments of what comes share the
    link with what goes, and ranks share cores.)"""
    array = np.zeros(job.size * nbytes // 4, np.float32)

    def gather() -> None:
        comm.all_gather(array)

    return least(job, gather, in_a_row(nbytes)) / (job.size - 1)


def in_a_row(nbytes: int) -> int:
    """Operations that are timed together, as ranks do not begin at the same moment: of large sizes
    as many of each, so what a rested link lets through at once is in all rows alike."""
    return 6 if nbytes < 1 << 18 else 2


def least(job: Any, run: Any, count: int = 1) -> float:
    """Microseconds of one: of the fastest of some rows of so many, each of its slowest rank."""
    times = []
    for _ in range(REPEAT):
        job.barrier()
        start = time.perf_counter()
        for _ in range(count):
            run()
        times.append((time.perf_counter() - start) / count)
    return min(map(max, zip(*job.gather(times), strict=True))) * 1e6


def late(job: Any, comm: Any, nbytes: int) -> float:
    """Microseconds that the last rank receives what the first one has sent LATE seconds before."""
    array, times = np.zeros(nbytes // 4, np.float32), []
    for _ in range(3):
        job.barrier()
        if job.rank == 0:
            comm.transfer(array, Step((Transfer(job.size - 1, 0, array.size),)))
        elif job.rank == job.size - 1:
            time.sleep(LATE)
            start = time.perf_counter()
            comm.transfer(array, Step(receives=(Transfer(0, 0, array.size),)))
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
