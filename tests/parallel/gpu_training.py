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
from osucaffe.cli.ranks import identify
from osucaffe.comm import copying
from osucaffe.comm.create import Wanted
from osucaffe.comm.job import Job
from osucaffe.comm.topology import discover
from osucaffe.parallel.design import Design
from osucaffe.parallel.team import DataParallel
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver

from .equivalence import BATCH, FEW, NET, OTHER, ROUNDING, SGD, flatten, job_with_data, weights

CASES = [
    (Design(propagation="auto", bucket=512), Wanted(), SGD),
    (Design(propagation="auto", bucket=512), Wanted(), SGD + " clip_gradients: 0.5"),
    (Design("blocking"), Wanted("nccl"), SGD),
    (Design(bucket=512), Wanted("nccl"), SGD + " iter_size: 2 clip_gradients: 0.5"),
    (Design(bucket=512), Wanted("ipc"), SGD),
    (Design(bucket=512), Wanted("nccl+ipc"), SGD + " clip_gradients: 0.5"),
    (Design(bucket=512), Wanted("mpi"), SGD),
    (Design("blocking", "blocking"), Wanted("nccl"), SGD),
    (Design("layerwise", "overlapped", bucket=512), Wanted("mpi"), SGD + " iter_size: 2"),
    (Design("layerwise", "overlapped", bucket=512), Wanted("nccl"), SGD + " clip_gradients: 0.5"),
    (Design(bucket=512), Wanted("copy"), SGD + " iter_size: 2"),
    (Design("layerwise", "overlapped", bucket=512), Wanted("copy"), SGD),
    (Design("layerwise", "sharded", bucket=512), Wanted("copy"), SGD),
    (Design("blocking", "sharded"), Wanted("nccl"), SGD + " iter_size: 2"),
    (Design("layerwise", "sharded", bucket=512), Wanted("nccl"), SGD),
    (Design("layerwise", "sharded", bucket=512), Wanted("mpi"), SGD),
    (Design(bucket=512), Wanted("auto", group=2), SGD),
    (Design("layerwise", "sharded", bucket=512), Wanted("hierarchical", group=2), SGD),
    (Design(bucket=512), Wanted("nccl", bits="float16"), SGD + " iter_size: 2"),
    (Design("blocking"), Wanted("ipc", bits="bfloat16"), SGD),
    (Design("layerwise", "overlapped", bucket=512), Wanted("auto", bits="float16"), SGD),
    (Design("layerwise", "sharded", bucket=512), Wanted("nccl", bits="bfloat16"), SGD),
    (Design(bucket=512), Wanted("mpi", bits="float16"), SGD),
]

TURNS = [
    (Design(bucket=512), Wanted("nccl")),
    (Design("layerwise", "sharded", bucket=512), Wanted("nccl")),
    (Design(bucket=512), Wanted("copy")),
    (Design("layerwise", "sharded", bucket=512), Wanted("copy")),
    (Design("layerwise", "sharded", bucket=2048), Wanted("copy")),
    (Design(bucket=512), Wanted("nccl+ipc")),
]
"""What lives at the same time: graphs, streams and shared memory of several communicators."""


def train(
    source: Path, batch: int, settings: str, gpu: int, iterations: int, **options: Any
) -> Solver:
    param = parse_text(OTHER + settings, SolverParameter)
    net = parse_text(NET.format(source=source, batch=batch), NetParameter)
    param.net_param.CopyFrom(net)
    solver = Solver(param, Cuda(gpu, "fp32"), file="solver.prototxt", **options)
    solver.step(iterations)
    return solver


@functools.cache
def reference(source: Path, batch: int, settings: str, gpu: int, iterations: int) -> Any:
    """The weights that one GPU comes to with the whole batch."""
    return weights(train(source, batch, settings, gpu, iterations))


def compare(job: Job, solver: Solver, bits: str, wanted: Any, case: str) -> list[str]:
    """Say which weights are not those that are wanted, or not the same on every rank."""
    got = weights(solver)
    first = job.share(got)
    names = [each.name for each in solver.net.parameters]
    if bits != "float32":
        names, got, first, wanted = ["all"], *([flatten(x)] for x in (got, first, wanted))
    wrong = []
    for name, mine, zero, want in zip(names, got, first, wanted, strict=True):
        error = np.linalg.norm(mine - want) / (np.linalg.norm(want) or 1)
        if error > ROUNDING[bits] or (mine != zero).any():
            wrong.append(f"{case}: {name} {error} {np.abs(mine - zero).max()}")
    return wrong


def main() -> None:
    with job_with_data() as (job, folder):
        import cupy

        copying.SMALL = 0  # buckets of so small a net go by copies, too
        gpus, source = cupy.cuda.runtime.getDeviceCount(), folder / "lmdb"
        gpu, shared = job.rank % gpus, job.size > gpus
        cases, turns = (
            [case for case in all_of_them if not (shared and "nccl" in case[1].kind)]
            for all_of_them in (CASES, TURNS)
        )
        topology = discover(job, *identify(gpu))
        wrong = []
        for design, wanted, settings in cases:
            iterations = 20 if wanted.bits == "float32" else FEW
            alone = reference(source, BATCH * job.size, settings, gpu, iterations)
            team = DataParallel(job, topology, wanted, design)
            solver = train(source, BATCH, settings, gpu, iterations, team=team)
            wrong += compare(job, solver, wanted.bits, alone, f"{design} {wanted} {settings}")
            solver.close()
        solvers = [
            train(source, BATCH, SGD, gpu, 4, team=DataParallel(job, topology, wanted, design))
            for design, wanted in turns
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
