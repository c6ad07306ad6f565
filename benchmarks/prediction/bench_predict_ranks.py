"""What the ranks run that bench_predict starts: how fast links, layers and what is predicted are.

Argument: the solver's file. Rank 0 prints one line of JSON: what `links` gives; milliseconds of
each layer (of the slowest rank, all at the same time); the shares that computation and
communication lose of each other's time; microseconds of collective operations; milliseconds of
iterations by design, and of their parts; the same of a net whose layers are asleep. Everything is
the least of some, as others use the cores; but of layers, a whole pass.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from functools import partial
from typing import Any

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.cli.score.time import measure
from osucaffe.comm.communicator import Handle
from osucaffe.comm.config import CommConfig
from osucaffe.comm.create import make_communicator
from osucaffe.comm.job.job import find_job
from osucaffe.comm.job.topology import discover
from osucaffe.net import Net
from osucaffe.solvers import Solver

from .bench_predict_cases import COLLECTIVES, SIZES, TRAINED
from .bench_predict_links import REPEAT, in_a_row, least, links
from .bench_predict_training import lenet, sleep, train

LAYERS = 20
"""The fastest of as many passes counts: the machine has other work."""
BESIDE = 256 << 10
"""Bytes of the sums beside which passes are timed."""


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
        (each.name, each.type, float(forward), float(backward))
        for each, (forward, backward) in zip(own, every[rank, :, :, best], strict=True)
    ]


def beside(job: Any, topology: Any, net: Net) -> tuple[float, float]:
    """What passes lose of the time of sums that all ranks do on their threads meanwhile, and what
    sums lose of the time of passes: shares."""
    comm = make_communicator(job, topology, CommConfig("mpi"), background=True)
    array, run = np.zeros(BESIDE // 4, np.float32), net.as_step()

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
        found = links(job, topology)
        found["collectives"] = []
        for operation, algorithm in COLLECTIVES:
            comm = make_communicator(job, topology, CommConfig("mpi", algorithm))
            for nbytes in SIZES:
                array = np.zeros(nbytes // 4, np.float32)
                run = partial(comm.collective, operation, array)
                took = least(job, run, in_a_row(nbytes))
                found["collectives"].append([operation, algorithm, nbytes, took])
            comm.close()
        found["asleep"] = sleep(job, topology)
        net = Solver(lenet(file), Cpu(threads=1), file=file).net
        found["layers"] = layers(job, net)
        found["stolen"], found["held"] = beside(job, topology, net)
        found["iterations"] = {}
        for design in TRAINED:
            found["iterations"][design] = train(job, topology, lenet(file), design)
        if job.rank == 0:
            print(json.dumps(found))


if __name__ == "__main__":
    main()
