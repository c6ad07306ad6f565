"""What the ranks run that bench_comm starts: all-reduces by different means, in turn.

Arguments: what to compare (host, hosts or gpu), then the largest array in bytes. Rank 0 prints
one line of JSON: for each size the microseconds of each way, medians over rounds of alternation.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from osucaffe.comm.create import Wanted, make_communicator
from osucaffe.comm.job import find_job
from osucaffe.comm.topology import discover
from osucaffe.comm.tune import seconds

ROUNDS = 5
FLAT = ("ring", "halving_doubling", "recursive_doubling", "chain_binomial", "native")
Way = Callable[[Any], float]


def on_hosts(job: Any, levels: bool) -> dict[str, Way]:
    """Algorithms over MPI on host arrays; levels: with hierarchical."""
    topology = discover(job)
    wanted = {name: Wanted("mpi", name) for name in FLAT} | {"auto": Wanted("mpi")}
    if levels:
        wanted["hierarchical"] = Wanted("hierarchical")

    def way(each: Wanted) -> Way:
        comm = make_communicator(job, topology, each)
        return lambda array: seconds(job, comm, "all_reduce", array, budget=0.01)

    return {name: way(each) for name, each in wanted.items()}


def on_gpus(job: Any, cupy: Any) -> dict[str, Way]:
    """NCCL, our kernels, and the choice between them, on device arrays."""
    from osucaffe.comm.ipc import BUFFER_BYTES, Ipc
    from osucaffe.comm.nccl import Nccl

    ipc = Ipc(job.world)
    nccl, auto = Nccl(job.world), Nccl(job.world, small=Ipc(job.world))
    stream = cupy.cuda.Stream(non_blocking=True)

    def timed(run: Callable[[Any], None], most: int) -> Way:
        """As training does it: many of them, captured as one CUDA graph."""
        graphs: dict[int, tuple[Any, Any, int]] = {}

        def way(array: Any) -> float:
            if array.nbytes > most:
                return float("nan")
            if array.nbytes not in graphs:
                repeat = 200 if array.nbytes < 1 << 20 else 20
                run(array)
                stream.synchronize()
                stream.begin_capture()
                for _ in range(repeat):
                    run(array)
                graphs[array.nbytes] = stream.end_capture(), array, repeat
            graph, _, repeat = graphs[array.nbytes]
            for _ in range(2):  # the first one warms up
                stream.synchronize()
                job.barrier()
                start = time.perf_counter()
                graph.launch(stream)
                stream.synchronize()
            return float(max(job.gather((time.perf_counter() - start) / repeat)))

        return way

    def kernel(name: str) -> Way:
        return timed(lambda array: ipc._launch(name, array, stream), BUFFER_BYTES)

    def reduce(comm: Nccl) -> Way:
        return timed(lambda array: comm.enqueue("all_reduce", array, 0, stream), 1 << 40)

    return {
        "nccl": reduce(nccl),
        "auto": reduce(auto),
        "one_shot": kernel("one_shot"),
        "two_shot": kernel("two_shot"),
    }


def main() -> None:
    """Measure and print."""
    what, largest = sys.argv[1], int(sys.argv[2])
    job = find_job()
    with job.together():
        make: Callable[[int], Any] = lambda count: np.zeros(count, np.float32)  # noqa: E731
        if what == "gpu":
            import cupy

            cupy.cuda.Device(job.rank % cupy.cuda.runtime.getDeviceCount()).use()
            make = lambda count: cupy.zeros(count, np.float32)  # noqa: E731
            ways = on_gpus(job, cupy)
        else:
            ways = on_hosts(job, what == "hosts")
        rows = []
        nbytes = 4
        while nbytes <= largest:
            array = make(nbytes // 4)
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(ROUNDS):
                for name, way in ways.items():
                    times[name].append(way(array) * 1e6)
            row = {name: round(statistics.median(each), 1) for name, each in times.items()}
            rows.append({"bytes": nbytes} | {name: t for name, t in row.items() if t == t})
            nbytes *= 4
        if job.rank == 0:
            print(json.dumps(rows))


if __name__ == "__main__":
    main()
