"""Owns trials: ranks of `train` that measure how fast they train, and write nothing else."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .. import options
from ..launch import rank_options, ranks, ranks_per_gpu

if TYPE_CHECKING:
    from ...comm.job.job import Job
    from ...proto import SolverParameter

SECONDS = 1.5
"""Of training that are measured, when the net is built and warm."""


def run(args: argparse.Namespace, job: Job, param: SolverParameter) -> int:
    """Train for a moment, and let rank 0 write what all ranks train in a second."""
    from ... import log
    from ...parallel.batch import readers
    from ...parallel.tuning import quieten, seconds_of_iteration
    from ...solvers.solver import Solver

    log.start(None)
    log.quieten()
    bucket = rank_options.bucket_nbytes(args) / 2**20
    args = argparse.Namespace(**vars(args) | {"comm_profile": None, "bucket_mb": bucket})
    args, topology = ranks.place(args, job)
    sharers = sum(each.host == topology.own.host for each in topology.ranks)
    solver = Solver(
        quieten(param),
        options.make_backend(args),
        file=args.solver,
        group=ranks.make_process_group(args, job, topology),
        loss_scale=args.loss_scale,
        data_config=options.data_config(args, sharers),
    )
    took = seconds_of_iteration(job, solver, SECONDS)
    sizes = {message.batch_size for _, message in readers(solver.net.param)}
    each, unit = (sizes.pop(), "images/s") if len(sizes) == 1 else (1, "batches/s")
    rate = each * max(param.iter_size, 1) * job.size / took
    if job.rank == 0:
        found = {"rate": rate, "unit": unit}
        Path(os.environ[ranks_per_gpu.TRIAL]).write_text(json.dumps(found))
    solver.close()
    return 0
