"""What the ranks run that bench_comm --gpu starts: all-reduces by different communicators, in turn.

Argument: the largest array in bytes. Rank 0 prints a line `ROW {...}` for each size: the
microseconds of each communicator in a replayed CUDA graph and called one by one, medians over
rounds in which the communicators take turns.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import cupy
import numpy as np

from osucaffe.cli.ranks import identify
from osucaffe.comm.communicator import Communicator
from osucaffe.comm.create import CommConfig, make_communicator
from osucaffe.comm.job import find_job
from osucaffe.comm.on_stream import OnStream
from osucaffe.comm.topology import discover
from osucaffe.comm.tune import replayed

KINDS = ("nccl", "ipc", "auto", "mpi")
ROUNDS = 11
BUDGET = 2e-3
"""Seconds that a measurement takes about."""
RATE = 150e9
"""Bytes a second, to guess from how many repetitions fill the budget."""
HOST_SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
"""Where MPI, which needs the host, is measured too."""
Way = Callable[[], float]


def sizes(largest: int) -> Iterator[int]:
    """Powers of 4, and between 16 KB and 4 MB of 2."""
    nbytes = 4
    while nbytes <= largest:
        yield nbytes
        nbytes *= 2 if 16 << 10 <= nbytes < 4 << 20 else 4


def called(comm: Communicator, array: Any, stream: Any, repeat: int) -> Way:
    """Seconds of one of many that the host calls one by one."""

    def way() -> float:
        start = time.perf_counter()
        for _ in range(repeat):
            comm.all_reduce(array, stream=stream).wait()
        stream.synchronize()
        return (time.perf_counter() - start) / repeat

    return way


def measure(job: Any, comms: dict[str, Communicator], nbytes: int) -> dict[str, dict[str, float]]:
    """Microseconds of each communicator, after a check that it adds. The graphs end with this."""
    stream = cupy.cuda.Stream(non_blocking=True)
    repeat = max(2, min(100, int(BUDGET / (10e-6 + nbytes / RATE))))
    ways: dict[str, dict[str, Way]] = {"graph": {}, "called": {}}
    with stream:
        array = cupy.empty(nbytes // 4, np.float32)
    for name, comm in comms.items():
        if name == "mpi" and nbytes not in HOST_SIZES:
            continue
        with stream:
            array.fill(1)
        comm.all_reduce(array, stream=stream).wait()
        stream.synchronize()
        with stream:
            assert bool((array == job.size).all()), f"{name}: {nbytes} bytes are added wrong"
            array.fill(0)
        if isinstance(comm, OnStream):
            ways["graph"][name] = replayed(comm, array, stream, repeat)
        ways["called"][name] = called(comm, array, stream, repeat if name != "mpi" else 2)
    times: dict[str, dict[str, float]] = {}
    for mode, named in ways.items():
        found: dict[str, list[float]] = {name: [] for name in named}
        for turn in range(ROUNDS + 1):  # the first turn warms up
            for name, way in named.items():
                job.barrier()
                took = max(job.gather(way()))
                if turn:
                    found[name].append(took)
        times[mode] = {
            name: round(statistics.median(each) * 1e6, 2) for name, each in found.items()
        }
    return times


def main() -> None:
    """Measure and print."""
    largest = int(sys.argv[1])
    job: Any = find_job()
    with job.together():
        cupy.cuda.Device(job.rank).use()
        topology = discover(job, *identify(job.rank))
        comms = {kind: make_communicator(job, topology, CommConfig(kind)) for kind in KINDS}
        for nbytes in sizes(largest):
            row = {"bytes": nbytes} | measure(job, comms, nbytes)
            if job.rank == 0:
                print("ROW", json.dumps(row), flush=True)
        gc.collect()  # NCCL ends when no graph lives that holds its operations
        for comm in comms.values():
            comm.close()


if __name__ == "__main__":
    main()
