"""What the ranks run that bench_scaling starts: training iterations of osucaffe and PyTorch DDP.

Arguments: the cases as MODEL:BATCH, with commas; the folder for traces of the first case. Rank 0
prints a line of JSON for each case: the milliseconds of an iteration of each side, medians over
rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy
import torch
from torch.nn.parallel import DistributedDataParallel

from osucaffe.backends.cuda import Cuda
from osucaffe.cli.launch.ranks import identify
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import find_job
from osucaffe.comm.job.topology import discover
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.solvers import Solver
from osucaffe.solvers.tracer import Tracer

from .. import nets
from ..built import solver_settings
from ..training.gpu import torch_twin, training_step

ROUNDS = 3
SECONDS = 0.25
WAYS = {
    "alone": None,
    "default": ("auto", ParallelConfig(propagation="auto")),
    "all_reduce": ("nccl+ipc", ParallelConfig()),
    "all_reduce, copy": ("copy", ParallelConfig()),
    "sharded": ("nccl+ipc", ParallelConfig(propagation="sharded")),
    "sharded, copy": ("copy", ParallelConfig(propagation="sharded")),
}
"""osucaffe's sides: the communicator, and what travels when. Alone, each GPU trains by itself."""
Run = Callable[[int], Any]


def ours(job: Any, gpu: int, model: str, batch: int, way: str) -> tuple[Run, Solver]:
    """So many iterations of osucaffe in bf16, and the solver, to be closed in the end."""
    net = nets.training_net(model, batch)
    group = None
    if found := WAYS[way]:
        kind, config = found
        group = DataParallel(job, discover(job, *identify(gpu)), CommConfig(kind), config)
    solver = Solver(solver_settings(net), Cuda(gpu, "bf16"), group=group)
    for name, values in nets.synthetic_batch(net).items():
        solver.net.write(name, values)

    def run(iterations: int) -> None:
        solver.step(iterations)
        solver.backend.synchronize()

    return run, solver


def torch_side(gpu: int, model: str, batch: int, *, ddp: bool) -> Run:
    """The same in PyTorch, eager, channels_last, bf16 by autocast: alone, or in DDP."""
    net = nets.training_net(model, batch)
    peer, inputs = torch_twin(net)
    twin: torch.nn.Module = peer
    if ddp:
        twin = DistributedDataParallel(peer, device_ids=[gpu], gradient_as_bucket_view=True)
    once = training_step(peer, twin, inputs, "eager", "bf16")

    def run(iterations: int) -> None:
        for _ in range(iterations):
            once()
        torch.cuda.synchronize()

    return run


def seconds(job: Any, run: Run, iterations: int) -> float:
    """Of one iteration, on the slowest rank."""
    job.barrier()
    start = time.perf_counter()
    run(iterations)
    return float(max(job.gather(time.perf_counter() - start)) / iterations)


def rounds(job: Any, run: Run) -> list[float]:
    """Milliseconds of an iteration, of each round."""
    seconds(job, run, 5)
    count = max(10, int(SECONDS / seconds(job, run, 20)))
    return [seconds(job, run, count) * 1e3 for _ in range(ROUNDS)]


def measure(job: Any, gpu: int, model: str, batch: int, traces: Path | None) -> dict[str, Any]:
    """Milliseconds of each side, one after the other: each has the GPUs, and their memory, to
    itself. A GPU alone is measured first and last."""
    times: dict[str, list[float]] = {}
    for name in [*WAYS, "alone"]:
        run, solver = ours(job, gpu, model, batch, name)
        times.setdefault(name, []).extend(rounds(job, run))
        if traces and name != "alone":
            file = traces / f"{model}-{batch}-{name.replace(', ', '-')}.json"
            solver.tracer = Tracer(file, solver.backend, job.rank)
            solver.step(10)
        solver.close()
        del run, solver
        cupy.get_default_memory_pool().free_all_blocks()
    for name in "PyTorch, alone", "DDP":
        times[name] = rounds(job, torch_side(gpu, model, batch, ddp=name == "DDP"))
        torch.cuda.empty_cache()
    return {name: round(statistics.median(each), 4) for name, each in times.items()}


def main() -> None:
    """Measure and print."""
    job: Any = find_job()
    with job.together():
        gpu = job.rank
        cupy.cuda.Device(gpu).use()
        torch.cuda.set_device(gpu)
        torch.backends.cudnn.benchmark = True
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
        torch.distributed.init_process_group("nccl", rank=job.rank, world_size=job.size)
        traces: Path | None = Path(sys.argv[2])
        for case in sys.argv[1].split(","):
            model, _, batch = case.partition(":")
            row = {"model": model, "batch": int(batch), "ranks": job.size}
            row["ms"] = measure(job, gpu, model, int(batch), traces)
            traces = None
            if job.rank == 0:
                print("ROW", json.dumps(row), flush=True)
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
