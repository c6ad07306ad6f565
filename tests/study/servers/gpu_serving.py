"""What the ranks run that test_gpu.py starts: workers that share a GPU, and servers on the host."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np

from osucaffe.backends.cpu import Cpu
from osucaffe.backends.cuda import Cuda
from osucaffe.backends.cuda.layout import from_bfloat16, to_bfloat16
from osucaffe.cli.launch.ranks import identify
from osucaffe.comm.channels.create import make_channel
from osucaffe.comm.config import CommConfig
from osucaffe.comm.job.job import MpiJob
from osucaffe.comm.job.topology import discover
from osucaffe.parallel.config import ParallelConfig
from osucaffe.study.servers import shards
from osucaffe.study.servers.shards import Consistency
from osucaffe.study.servers.training import ServerDataParallel, assign_roles
from tests.parallel.equivalence import BATCH, assert_near, job_with_data, make_solver, weights

from .serving import ITERATIONS, SETTINGS

CASES = [
    ("SGD", "adaptive", "sync", "fp32", ParallelConfig(bucket=512)),
    ("clipped", "mpi", "sync", "fp32", ParallelConfig(bucket=512)),
    ("Adam", "grpc", "sync", "fp32", ParallelConfig("blocking")),
    ("SGD", "adaptive", "ssp:1", "fp32", ParallelConfig(bucket=512)),
    ("SGD", "mpi", "async", "fp32", ParallelConfig(bucket=0)),
    ("SGD", "adaptive", "sync", "bf16", ParallelConfig(bucket=512)),
]


def case(
    job: MpiJob,
    source: Path,
    servers: int,
    name: str,
    kind: str,
    consistency: str,
    precision: str,
    design: ParallelConfig,
) -> None:
    """Train, and compare with one GPU that has the whole batch."""
    if kind == "grpc" and importlib.util.find_spec("grpc") is None:
        kind = "adaptive"
    roles = assign_roles(
        job, servers, Consistency.parse(consistency), make_channel(job, discover(job), kind)
    )
    if roles.serves:
        roles.serve(Cpu(threads=1, onednn=False))
        return

    group = ServerDataParallel(roles, discover(roles.part, *identify(0)), CommConfig(), design)
    together = make_solver(source, BATCH, SETTINGS[name], Cuda(0, precision), group=group)
    together.step(ITERATIONS)
    together.test_all()
    group.synchronize_weights(history=True)
    got, where = weights(together), f"{name}, {kind}, {consistency}, {precision}"
    assert all(np.isfinite(each).all() for each in got), where
    if precision == "bf16":  # what forward reads are the weights that came
        backend = together.backend
        assert isinstance(backend, Cuda)
        for parameter, values in zip(together.net.parameters, got, strict=True):
            copy = backend.read(backend.low_precision(parameter.blob.data))
            want = from_bfloat16(to_bfloat16(values.ravel())).reshape(values.shape)
            assert (copy == want).all(), f"{where}: {parameter.name}"
    elif consistency == "sync" and not group.rank:
        batch = BATCH * roles.workers
        alone = make_solver(source, batch, SETTINGS[name], Cuda(0, precision))
        alone.step(ITERATIONS)
        names = [f"{where}: {parameter.name}" for parameter in together.net.parameters]
        assert_near(names, got, weights(alone))
    together.close()
    if consistency == "ssp:1":
        assert len(group.lags) <= 2, where


def main() -> None:
    shards.MAX_UNDIVIDED = 512
    with job_with_data() as (job, folder):
        assert isinstance(job, MpiJob)
        for each in CASES:
            case(job, folder / "lmdb", int(sys.argv[2]), *each)
    print(f"rank {job.rank}: {len(CASES)} served\n", end="")


if __name__ == "__main__":
    main()
