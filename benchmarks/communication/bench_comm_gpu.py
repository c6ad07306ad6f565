"""What the ranks run that bench_comm --gpu starts: each collective by different communicators, in
turn.

Argument: the largest array in bytes. Rank 0 prints a line `ROW {...}` for each size and operation:
the microseconds of each communicator in a replayed CUDA graph, and of some sizes called one by one,
medians over rounds in which the communicators take turns.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cupy
import numpy as np

from osucaffe.cli.launch.ranks import identify
from osucaffe.comm.algorithms import OPERATIONS, Operation
from osucaffe.comm.communicator import Communicator
from osucaffe.comm.config import CommConfig
from osucaffe.comm.create import make_communicator
from osucaffe.comm.gpu.on_stream import OnStream
from osucaffe.comm.job.job import find_job
from osucaffe.comm.job.topology import discover
from osucaffe.comm.tuning.measure import in_turns, replayed

KINDS = ("nccl", "ipc", "copy", "auto", "mpi")
ROUNDS = 12
"""The first one warms up."""
BUDGET = 2e-3
"""Seconds that a measurement takes about."""
RATE = 150e9
"""Bytes a second, to guess from how many repetitions fill the budget."""
HOST_SIZES = (1 << 10, 64 << 10, 1 << 20, 16 << 20)
"""Which are called one by one, too, with MPI, which needs the host."""
Way = Callable[[], float]


def sizes(largest: int) -> Iterator[int]:
    """Powers of 4, and between 16 KB and 4 MB of 2."""
    nbytes = 4
    while nbytes <= largest:
        yield nbytes
        nbytes *= 2 if 16 << 10 <= nbytes < 4 << 20 else 4


def called(comm: Communicator, operation: Operation, array: Any, stream: Any, repeat: int) -> Way:
    """Seconds of one of many that the host calls one by one."""
    run = partial(comm.collective, operation)

    def way() -> float:
        start = time.perf_counter()
        for _ in range(repeat):
            run(array, stream=stream).wait()
        stream.synchronize()
        return (time.perf_counter() - start) / repeat

    return way


def is_right(comm: Communicator, operation: Operation, array: Any) -> bool:
    """Whether an operation has done this, of arrays that were filled with rank + 1; the root is
    0."""
    total = comm.size * (comm.size + 1) // 2
    whole = 0, array.size
    if operation == "broadcast":
        expected = {whole: 1}
    elif operation == "all_gather":
        expected = {comm.part(array.size, rank): rank + 1 for rank in range(comm.size)}
    elif operation == "reduce_scatter":
        expected = {comm.part(array.size): total}
    else:
        expected = {whole: total} if operation == "all_reduce" or comm.rank == 0 else {}
    return all(bool((array[slice(*span)] == value).all()) for span, value in expected.items())


def measure(
    job: Any, comms: dict[str, Communicator], operation: Operation, array: Any
) -> dict[str, dict[str, float]]:
    """Microseconds of each communicator, after a check. The graphs end with this."""
    stream = cupy.cuda.Stream(non_blocking=True)
    repeat = max(2, min(100, int(BUDGET / (10e-6 + array.nbytes / RATE))))
    ways: dict[str, dict[str, Way]] = {"graph": {}, "called": {}}
    for name, comm in comms.items():
        slowly = array.nbytes in HOST_SIZES
        if not slowly and not isinstance(comm, OnStream):
            continue
        with stream:
            array.fill(comm.rank + 1)
        comm.collective(operation, array, stream=stream).wait()
        stream.synchronize()
        with stream:
            assert is_right(comm, operation, array), f"{name}: {operation}, {array.nbytes} bytes"
            array.fill(0)
        if isinstance(comm, OnStream):
            ways["graph"][name] = replayed(comm, array, stream, repeat, operation)
        if slowly:
            times = repeat if isinstance(comm, OnStream) else 2
            ways["called"][name] = called(comm, operation, array, stream, times)
    return {
        mode: {name: round(took * 1e6, 2) for name, took in in_turns(job, named, ROUNDS).items()}
        for mode, named in ways.items()
    }


def main() -> None:
    """Measure and print."""
    largest = int(sys.argv[1])
    job: Any = find_job()
    with job.together():
        cupy.cuda.Device(job.rank).use()
        topology = discover(job, *identify(job.rank))
        comms = {kind: make_communicator(job, topology, CommConfig(kind)) for kind in KINDS}
        for nbytes in sizes(largest):
            array = cupy.zeros(nbytes // 4, np.float32)
            for operation in OPERATIONS:
                row = {"operation": operation, "bytes": nbytes}
                row |= measure(job, comms, operation, array)
                if job.rank == 0:
                    print("ROW", json.dumps(row), flush=True)
        gc.collect()  # NCCL ends when no graph lives that holds its operations
        for comm in comms.values():
            comm.close()


if __name__ == "__main__":
    main()
