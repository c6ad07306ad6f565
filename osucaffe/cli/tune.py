"""Measure the communication algorithms here, and write the table that picks them.

  osucaffe tune --ranks 4            four ranks on this machine
  mpiexec -n 16 osucaffe tune        the ranks of a job

Later runs use the table by themselves. Other numbers of ranks are kept beside these."""

from __future__ import annotations

import argparse

from . import options, ranks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--ranks", metavar="N", type=options.positive, help="start so many ranks")
    parser.add_argument("--out", metavar="FILE", help="the table (default: the user's own)")
    parser.add_argument(
        "--max_mb",
        metavar="MB",
        type=options.not_negative,
        default=64.0,
        help="the largest arrays to measure (default: 64)",
    )
    parser.set_defaults(gpu=None)


def run(args: argparse.Namespace) -> None:
    """Measure, write, and say where."""
    from pathlib import Path

    from ..comm import tune, tuning
    from ..comm.communicator import Communicator
    from ..comm.create import Maker
    from ..comm.job import MpiJob, find_job
    from ..comm.topology import discover
    from ..errors import UserError

    ranks.launch(args)
    job = find_job()
    with job.together():
        ranks.check_size(args, job)
        if not isinstance(job, MpiJob) or job.size == 1:
            raise UserError("tune measures several ranks: add --ranks N, or start it with mpiexec")
        topology = discover(job)
        sizes = [nbytes for nbytes in tune.SIZES if nbytes <= max(args.max_mb * 2**20, 16)]

        def make(choice: tuning.Choice) -> Communicator:
            fixed = tuning.Selection(choice.algorithm, chunk=choice.chunk)
            return Maker(job, topology, fixed).flat()

        def report(line: str) -> None:
            if job.rank == 0:
                print(line, flush=True)

        rows = tune.measure(job, make, sizes, report)
        level = "node" if len(topology.hosts) == 1 else "network"
        path = Path(args.out) if args.out else tuning.user_table()
        if job.rank == 0:
            tune.merge(path, level, job.size, rows)
            print(f"wrote {path}: level {level}, {job.size} ranks")
