"""What the ranks run that bench_predict starts: how fast links, layers and what is predicted are.

Argument: the solver's file. Rank 0 prints one line of JSON: one-way microseconds by bytes between
the first and the last rank; bytes that one rank adds in a second; milliseconds of each layer (of
the slowest rank, all at the same time); the share of communication's time that computation beside
it loses; microseconds of collective operations; milliseconds of iterations by design, and of their
parts. Everything is the least of some, as others use the cores; but of layers, a whole pass is.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.cli.time import measure
from osucaffe.comm.create import CommConfig, make_communicator
from osucaffe.comm.host import HostMath
from osucaffe.comm.job import find_job
from osucaffe.comm.topology import discover
from osucaffe.net import Net
from osucaffe.parallel.profile_report import summarize
from osucaffe.parallel.profiled import Profiled, Records
from osucaffe.predict.iteration import DESIGNS
from osucaffe.proto import read_solver
from osucaffe.solvers import Solver

from .bench_predict_cases import BUCKET, COLLECTIVES, SIZES, TRAINED, config_of

PINGS = (64, 16 << 10, 256 << 10, 1 << 20, 4 << 20)
LAYERS = 15
ITERATIONS = 40
REPEAT = 9
BESIDE = 256 << 10
"""Bytes of the sums beside which passes are timed."""


def ping(job: Any, comm: Any, nbytes: int) -> float:
    """Microseconds one way, between the first and the last rank."""
    array, times, last = np.zeros(nbytes // 4, np.float32), [], job.size - 1
    for _ in range(2 * REPEAT):
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


def adding() -> float:
    """Bytes that this rank adds in a second."""
    math, array = HostMath(), np.zeros(1 << 20, np.float32)
    other, times = np.zeros_like(array), []
    for _ in range(15):
        start = time.perf_counter()
        math.add(array, other)
        times.append(time.perf_counter() - start)
    return float(array.nbytes / min(times))


def train(job: Any, topology: Any, file: str, design: str) -> dict[str, float]:
    """Milliseconds of the fastest iteration, and of its parts, the ranks' mean."""
    told: list[dict[str, float]] = []

    def report(records: Sequence[Records]) -> None:
        lengths = [[each.end - each.begin for each in rank.passes] for rank in records]
        best = int(np.argmin(np.max(lengths, axis=0)))
        found = summarize([replace(rank, passes=[rank.passes[best]]) for rank in records])
        told.append({"ms": found["wall_ms"]} | found["parts_ms"])

    config = config_of(DESIGNS[design], BUCKET)
    group = Profiled(job, topology, CommConfig("mpi"), config, report)
    param = read_solver(file)
    param.display = param.test_interval = param.snapshot = 0
    param.ClearField("test_iter")
    param.snapshot_after_train = False
    solver = Solver(param, Cpu(threads=1), file=file, group=group)
    solver.step(ITERATIONS)
    solver.close()
    return told[0] if told else {}


def least(job: Any, run: Any) -> float:
    """Microseconds of the fastest of some repetitions, each of its slowest rank."""
    times = []
    for _ in range(REPEAT):
        job.barrier()
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(map(max, zip(*job.gather(times), strict=True))) * 1e6


def layers(job: Any, net: Net) -> list[tuple[str, str, float, float]]:
    """Name, type and milliseconds of each layer in the pass whose slowest rank took the least, on
    that rank. (What each layer takes at least adds up to less than any pass takes, where ranks
    share cores.)"""
    job.barrier()
    own = measure(net, LAYERS)
    times = [(each.forward.times, each.backward.times) for each in own]
    every = np.array(job.gather(times))  # by rank, layer, direction, pass
    whole = every.sum(axis=(1, 2))
    best = int(np.argmin(whole.max(axis=0)))
    rank = int(np.argmax(whole[:, best]))
    return [
        (each.name, each.type, *map(float, every[rank, number, :, best]))
        for number, each in enumerate(own)
    ]


def stolen(job: Any, topology: Any, net: Net) -> float:
    """The share of communication's time that computation beside it loses: of passes during which
    all ranks keep summing on their threads."""
    comm = make_communicator(job, topology, CommConfig("mpi"), background=True)
    array, run = np.zeros(BESIDE // 4, np.float32), net.whole()
    alone = least(job, run)
    sums = least(job, lambda: comm.all_reduce(array).wait())
    times = []
    for _ in range(REPEAT):
        job.barrier()
        start = time.perf_counter()
        handles = [comm.all_reduce(array) for _ in range(2 + int(2 * alone / sums))]
        run()
        times.append(time.perf_counter() - start)
        for handle in handles:
            handle.wait()
    beside = min(map(max, zip(*job.gather(times), strict=True))) * 1e6
    comm.close()
    return max(0.0, 1.0 - alone / beside)


def main() -> None:
    """Measure and print."""
    file = sys.argv[1]
    job = find_job()
    with job.together():
        topology = discover(job)
        plain = make_communicator(job, topology, CommConfig("mpi"))
        found: dict[str, Any] = {"ping": {nbytes: ping(job, plain, nbytes) for nbytes in PINGS}}
        found["adding"] = float(np.mean(job.gather(adding())))
        found["collectives"] = []
        for operation, algorithm in COLLECTIVES:
            comm = make_communicator(job, topology, CommConfig("mpi", algorithm))
            for nbytes in SIZES:
                array = np.zeros(nbytes // 4, np.float32)
                took = least(job, partial(getattr(comm, operation), array))
                found["collectives"].append([operation, algorithm, nbytes, took])
            comm.close()
        net = Solver(read_solver(file), Cpu(threads=1), file=file).net
        found["layers"], found["stolen"] = layers(job, net), stolen(job, topology, net)
        found["iterations"] = {}
        for design in TRAINED:
            found["iterations"][design] = train(job, topology, file, design)
        if job.rank == 0:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
