"""What the ranks run that test_gpu.py starts: N GPUs with batch B against one with N·B."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.backends.cuda import Cuda
from osucaffe.cli.ranks import identify
from osucaffe.comm import copying
from osucaffe.comm.create import Wanted
from osucaffe.comm.topology import discover
from osucaffe.parallel.team import DataParallel, Design
from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver

from .equivalence import BATCH, FEW, NET, OTHER, ROUNDING, SGD, flatten, job_with_data, weights

CASES = [
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


def train(
    source: Path, batch: int, settings: str, gpu: int, iterations: int, **options: Any
) -> Solver:
    param = parse_text(OTHER + settings, SolverParameter)
    net = parse_text(NET.format(source=source, batch=batch), NetParameter)
    param.net_param.CopyFrom(net)
    solver = Solver(param, Cuda(gpu, "fp32"), file="solver.prototxt", **options)
    solver.step(iterations)
    return solver


def main() -> None:
    with job_with_data() as (job, folder):
        import cupy

        copying.SMALL = 0  # buckets of so small a net go by copies, too
        gpu = job.rank % cupy.cuda.runtime.getDeviceCount()
        topology = discover(job, *identify(gpu))
        worst, wrong = 0.0, []
        for design, wanted, settings in CASES:
            exact, tolerance = wanted.bits == "float32", ROUNDING[wanted.bits]
            iterations = 20 if exact else FEW
            alone = weights(train(folder / "lmdb", BATCH * job.size, settings, gpu, iterations))
            team = DataParallel(job, topology, wanted, design)
            solver = train(folder / "lmdb", BATCH, settings, gpu, iterations, team=team)
            got = weights(solver)
            first = job.share(got)
            names = [each.name for each in solver.net.parameters]
            if not exact:
                names, got, first, alone = ["all"], *([flatten(x)] for x in (got, first, alone))
            for name, mine, zero, want in zip(names, got, first, alone, strict=True):
                error = np.linalg.norm(mine - want) / (np.linalg.norm(want) or 1)
                worst = max(worst, error / tolerance)
                if error > tolerance or (mine != zero).any():
                    apart = np.abs(mine - zero).max()
                    wrong.append(f"{design} {wanted} {settings}: {name} {error} {apart}")
            solver.close()
        assert not wrong, "\n".join(wrong)
        print(
            f"rank {job.rank}: {len(CASES)} cases alike, {worst:.0%} of what is allowed off\n",
            end="",
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
