"""What the ranks run that test_gpu.py starts: N ranks with batch B against one with N·B; first by
one solver after the other, then by several that live at the same time and take turns. Where there
are more ranks than GPUs, without NCCL: it refuses two ranks on a GPU.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.backends.cuda import Cuda
from osucaffe.cli.launch.ranks import identify
from osucaffe.comm.config import CommConfig
from osucaffe.comm.gpu import copy_engine
from osucaffe.comm.job.job import Job
from osucaffe.comm.job.topology import discover
from osucaffe.parallel.config import ParallelConfig
from osucaffe.parallel.data_parallel import DataParallel
from osucaffe.solvers import Solver

from .equivalence import (
    BATCH,
    FEW,
    NET,
    ROUNDING,
    SGD,
    SPLIT,
    flatten,
    job_with_data,
    make_solver,
    weights,
)

CLIPPED, TWICE = SGD + " clip_gradients: 0.5", SGD + " iter_size: 2"
BOTH = TWICE + " clip_gradients: 0.5"
LAYERWISE, OVERLAPPED, SHARDED, AUTO = (
    ParallelConfig("layerwise", propagation, bucket=512)
    for propagation in ("none", "overlapped", "sharded", "auto")
)
GROUPS = CommConfig("hierarchical", group=2)
CASES = [
    (AUTO, CommConfig(), SGD),
    (AUTO, CommConfig(), CLIPPED),
    (ParallelConfig("blocking"), CommConfig("nccl"), SGD),
    (LAYERWISE, CommConfig("nccl"), BOTH),
    (LAYERWISE, CommConfig("ipc"), SGD),
    (LAYERWISE, CommConfig("nccl+ipc"), CLIPPED),
    (LAYERWISE, CommConfig("mpi"), SGD),
    (ParallelConfig("blocking", "blocking"), CommConfig("nccl"), SGD),
    (OVERLAPPED, CommConfig("mpi"), TWICE),
    (OVERLAPPED, CommConfig("nccl"), CLIPPED),
    (LAYERWISE, CommConfig("copy"), TWICE),
    (OVERLAPPED, CommConfig("copy"), SGD),
    (SHARDED, CommConfig("copy"), SGD),
    (ParallelConfig("blocking", "sharded"), CommConfig("nccl"), TWICE),
    (SHARDED, CommConfig("nccl"), SGD),
    (SHARDED, CommConfig("mpi"), SGD),
    (LAYERWISE, CommConfig("auto", group=2), SGD),
    (SHARDED, GROUPS, SGD),
    (LAYERWISE, CommConfig("nccl", gradient_dtype="float16"), TWICE),
    (ParallelConfig("blocking"), CommConfig("ipc", gradient_dtype="bfloat16"), SGD),
    (OVERLAPPED, CommConfig("auto", gradient_dtype="float16"), SGD),
    (SHARDED, CommConfig("nccl", gradient_dtype="bfloat16"), SGD),
    (LAYERWISE, CommConfig("mpi", gradient_dtype="float16"), SGD),
    (ParallelConfig(bucket=512, compression="topk:1"), CommConfig("nccl"), CLIPPED),
    (ParallelConfig(bucket=512, compression="randomk:1"), CommConfig("mpi"), SGD),
    (ParallelConfig(bucket=512, reproducible=True), CommConfig(), TWICE),
    (ParallelConfig(compression="powersgd:1000"), CommConfig(), SGD),
    (ParallelConfig(local_steps=1), CommConfig(), SGD),
    (ParallelConfig(split_inner_products="fc6,fc7"), CommConfig("nccl"), BOTH),
    (ParallelConfig(bucket=512, split_inner_products="fc6,fc7"), CommConfig("nccl"), SGD),
    (ParallelConfig(bucket=512, split_inner_products="fc6,fc7"), CommConfig("mpi"), CLIPPED),
    (ParallelConfig(split_inner_products="fc6,fc7"), GROUPS, SGD),
    (ParallelConfig(local_steps=1, compression="topk:1"), CommConfig("mpi"), TWICE),
]

TURNS = [
    (LAYERWISE, CommConfig("nccl")),
    (SHARDED, CommConfig("nccl")),
    (LAYERWISE, CommConfig("copy")),
    (SHARDED, CommConfig("copy")),
    (ParallelConfig("layerwise", "sharded", bucket=2048), CommConfig("copy")),
    (LAYERWISE, CommConfig("nccl+ipc")),
]
"""What lives at the same time: graphs, streams and shared memory of several communicators."""


def train(
    source: Path, batch: int, settings: str, gpu: int, iterations: int, **options: Any
) -> Solver:
    solver = make_solver(source, batch, settings, Cuda(gpu, "fp32"), **options)
    solver.step(iterations)
    return solver


@functools.cache
def reference(
    source: Path, batch: int, settings: str, gpu: int, iterations: int, net: str = NET
) -> Any:
    """The weights that one GPU comes to with the whole batch."""
    return weights(train(source, batch, settings, gpu, iterations, net=net))


def compare(job: Job, solver: Solver, bits: str, wanted: Any, case: str) -> list[str]:
    """Say which weights are not those that are wanted, or not the same on every rank."""
    got = weights(solver)
    first = job.broadcast_object(got)
    names = [each.name for each in solver.net.parameters]
    if bits != "float32":
        names, got, first, wanted = ["all"], *([flatten(x)] for x in (got, first, wanted))
    wrong = []
    for name, mine, zero, want in zip(names, got, first, wanted, strict=True):
        error = np.linalg.norm(mine - want) / (np.linalg.norm(want) or 1)
        if error > ROUNDING[bits] or (mine != zero).any():
            wrong.append(f"{case}: {name} {error} {np.abs(mine - zero).max()}")
    return wrong


def needs_nccl(config: ParallelConfig, comm: CommConfig) -> bool:
    """Whether a case cannot run where ranks share a GPU: ipc, in groups, has no all-to-all."""
    return "nccl" in comm.kind or (config.split_inner_products != "none" and comm == GROUPS)


def main() -> None:
    with job_with_data() as (job, folder):
        import cupy

        copy_engine.SMALL = 0  # buckets of so small a net go by copies, too
        gpus, source = cupy.cuda.runtime.getDeviceCount(), folder / "lmdb"
        gpu, shared = job.rank % gpus, job.size > gpus
        cases, turns = (
            [case for case in all_of_them if not (shared and needs_nccl(case[0], case[1]))]
            for all_of_them in (CASES, TURNS)
        )
        topology = discover(job, *identify(gpu))
        wrong = []
        for config, comm_config, settings in cases:
            iterations = 20 if comm_config.gradient_dtype == "float32" else FEW
            net = NET if config.split_inner_products == "none" else SPLIT
            alone = reference(source, BATCH * job.size, settings, gpu, iterations, net)
            group = DataParallel(job, topology, comm_config, config)
            solver = train(source, BATCH, settings, gpu, iterations, net=net, group=group)
            wrong += compare(
                job, solver, comm_config.gradient_dtype, alone, f"{config} {comm_config} {settings}"
            )
            solver.close()
        solvers = [
            train(
                source, BATCH, SGD, gpu, 4, group=DataParallel(job, topology, comm_config, config)
            )
            for config, comm_config in turns
        ]
        for _ in range(4):
            for solver in solvers:
                solver.step(4)
        alone = reference(source, BATCH * job.size, SGD, gpu, 20)
        for solver, case in zip(solvers, turns, strict=True):
            wrong += compare(job, solver, "float32", alone, f"in turns, {case}")
        for solver in solvers:
            solver.close()
        assert not wrong, "\n".join(wrong)
        print(f"rank {job.rank}: {len(cases) + len(turns)} cases alike\n", end="")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
