"""What the ranks run that bench_predict starts: how fast links, layers and what is predicted are.

Argument: the solver's file. Rank 0 prints one line of JSON: one-way microseconds by bytes between
the first and the last rank; bytes that one rank adds in a second; milliseconds of each layer (of
the slowest rank, all at the same time); the shares that computation and communication lose of each
other's time; microseconds of collective operations; milliseconds of iterations by design, and of
their parts. Everything is the least of some, as others use the cores; but of layers, a whole pass.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.cli.time import measure
from osucaffe.comm.communicator import Handle
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
LAYERS = ITERATIONS = 40
"""The fastest of as many counts: the machine has other work."""
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


def beside(job: Any, topology: Any, net: Net) -> tuple[float, float]:
    """What passes lose of the time of sums that all ranks do on their threads meanwhile, and what
    sums lose of the time of passes: shares."""
    comm = make_communicator(job, topology, CommConfig("mpi"), background=True)
    array, run = np.zeros(BESIDE // 4, np.float32), net.whole()

    def sums(count: int) -> list[Handle]:
        return [comm.all_reduce(array) for _ in range(count)]

    def whole() -> None:
        for handle in sums(count):
            handle.wait()

    alone = least(job, run)
    count = 2
    count = 2 + int(4 * alone / least(job, whole))  # for two passes
    whole_alone = least(job, whole)
    passes, whole_beside = [], []
    for _ in range(REPEAT):
        job.barrier()
        start = time.perf_counter()
        handles, ended = sums(count), list[float]()

        def wait(last: Handle = handles[-1], ended: list[float] = ended) -> None:
            last.wait()
            ended.append(time.perf_counter())

        waiter = threading.Thread(target=wait)
        waiter.start()
        run()
        passes.append(time.perf_counter() - start)
        while not ended:
            run()
        waiter.join()
        whole_beside.append(ended[0] - start)
    comm.close()

    def lost(before: float, times: list[float]) -> float:
        least_of = min(map(max, zip(*job.gather(times), strict=True)))
        return max(0.0, 1.0 - before / least_of / 1e6)

    return lost(alone, passes), lost(whole_alone, whole_beside)


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
        found["layers"] = layers(job, net)
        found["stolen"], found["held"] = beside(job, topology, net)
        found["iterations"] = {}
        for design in TRAINED:
            found["iterations"][design] = train(job, topology, file, design)
        if job.rank == 0:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
