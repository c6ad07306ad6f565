"""What the ranks run that bench_servers starts: gradients to parameter servers, weights back.

Arguments: models with commas, how many ranks serve, seconds of a turn, rounds, channels with
commas, and `gpu` if the workers share the first GPU. Rank 0 prints one line of
JSON: for each model the bytes of its weights, and by each channel, and by a ring among the workers,
the milliseconds of an exchange, the best of rounds of medians, of the slowest worker.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from osucaffe.backends.backend import Backend
from osucaffe.backends.cpu import Cpu
from osucaffe.cli.launch.ranks import identify
from osucaffe.comm.channels.create import make_channel
from osucaffe.comm.config import CommConfig
from osucaffe.comm.create import make_communicator
from osucaffe.comm.job.job import Job, MpiJob, find_job
from osucaffe.comm.job.topology import discover
from osucaffe.parallel.config import ParallelConfig
from osucaffe.solvers.solver import Solver
from osucaffe.study.servers.shards import Consistency
from osucaffe.study.servers.training import ServerDataParallel, assign_roles

from .. import nets
from ..built import solver_settings


def milliseconds(workers: Job, run: Callable[[], object], seconds: float) -> float:
    """Of one call."""

    def once() -> float:
        workers.barrier()
        begun = time.perf_counter()
        run()
        return float(max(workers.gather(time.perf_counter() - begun)))

    once()
    count = max(2, min(50, round(seconds / once())))
    return statistics.median(once() for _ in range(count)) * 1e3


def turn(
    job: MpiJob, model: str, servers: int, kind: str, seconds: float, *, gpu: bool
) -> dict[str, float]:
    """What a worker has measured with a channel; what a server returns is empty."""
    channel = make_channel(job, discover(job), kind)
    roles = assign_roles(job, servers, Consistency.parse("sync"), channel)
    if roles.serves:
        roles.serve(Cpu(threads=1))
        return {}
    topology = discover(roles.part, *(identify(0) if gpu else ()))
    backend = make_backend(gpu=gpu)
    group = ServerDataParallel(roles, topology, CommConfig(), ParallelConfig())
    solver = Solver(solver_settings(nets.training_net(model, 1)), backend, group=group)
    group.begin()

    def exchange() -> None:
        group.exchange()
        backend.synchronize()

    found = {kind: milliseconds(roles.part, exchange, seconds)}
    gradients = solver.net.arena.diff.array
    found["bytes"] = float(gradients.nbytes)
    ring = make_communicator(roles.part, topology, CommConfig("mpi", "ring"))
    found["ring"] = milliseconds(roles.part, lambda: ring.all_reduce(gradients).wait(), seconds)
    ring.close()
    solver.close()
    return found


def make_backend(*, gpu: bool) -> Backend:
    """A worker's."""
    if not gpu:
        return Cpu(threads=1)
    from osucaffe.backends.cuda import Cuda

    return Cuda(0, "bf16")


def main() -> None:
    """Measure and print."""
    models, servers, seconds = sys.argv[1].split(","), int(sys.argv[2]), float(sys.argv[3])
    rounds, kinds, gpu = int(sys.argv[4]), sys.argv[5].split(","), sys.argv[6:] == ["gpu"]
    job = find_job()
    with job.together():
        assert isinstance(job, MpiJob)
        rows: list[dict[str, Any]] = []
        for model in models:
            best: dict[str, float] = {}
            for _ in range(rounds):
                for kind in kinds:
                    found = turn(job, model, servers, kind, seconds, gpu=gpu)
                    for name, took in found.items():
                        best[name] = min(took, best.get(name, took))
            rows.append({"model": model} | best)
        if job.rank == 0:
            print(json.dumps(rows))


if __name__ == "__main__":
    main()
