"""Measure the communication algorithms on this machine, and write a tuning table.

  osucaffe tune --ranks 4            four ranks on this machine
  mpiexec -n 16 osucaffe tune        the ranks of a job
  osucaffe tune --gpu all            NCCL and ipc among the GPUs of this machine
  osucaffe tune --ranks 4 --designs solver.prototxt
                                     which design trains this net the fastest here, on CPUs:
                                     all-reduce, ring, tree, sharded or servers

Later runs use the table automatically. Entries for other numbers of ranks are kept."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .. import options
from ..launch import ranks

if TYPE_CHECKING:
    from ...comm.communicator import Communicator
    from ...comm.job.job import MpiJob
    from ...comm.job.topology import Topology
    from ...comm.tuning.table import Choice


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--ranks", metavar="N", type=options.positive, help="start N ranks on this machine"
    )
    parser.add_argument("--gpu", metavar="IDS", help='measure between GPUs: "0,1", or "all"')
    parser.add_argument(
        "--designs",
        metavar="SOLVER",
        help="train the net of this solver with each design in turn, and compare them",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=options.not_negative,
        default=2.0,
        help="seconds of each turn (default: 2)",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="the table to write (default: the user's own)"
    )
    parser.add_argument(
        "--max_mb",
        metavar="MB",
        type=options.not_negative,
        default=64.0,
        help="the largest arrays to measure, in MB (default: 64)",
    )


def run(args: argparse.Namespace) -> None:
    """Measure, write, and say where."""
    from pathlib import Path

    from ...comm.job.job import MpiJob, find_job
    from ...comm.job.topology import discover
    from ...comm.tuning import measure, table

    ranks.launch(args)
    job = find_job()
    with job.together():
        ranks.check_size(args, job)
        if not isinstance(job, MpiJob) or job.size == 1:
            raise UserError("tune measures several ranks: add --ranks N, or start it with mpiexec")
        sizes = [nbytes for nbytes in measure.SIZES if nbytes <= max(args.max_mb * 2**20, 4)]

        def report(line: str) -> None:
            if job.rank == 0:
                print(line, flush=True)

        if args.designs:
            _compare_designs(args, job, report)
            return
        if args.gpu is not None:
            rows, level = _measure_gpus(args, job, sizes, report), table.GPU
        else:
            topology = discover(job)
            level = "node" if len(topology.hosts) == 1 else "network"
            rows = measure.measure(job, partial(_make, job, topology), sizes, report)
        path = Path(args.out) if args.out else table.user_table()
        if job.rank == 0:
            measure.merge(path, level, job.size, rows)
            print(f"wrote {path}: level {level}, {job.size} ranks")


def _compare_designs(args: argparse.Namespace, job: MpiJob, report: Callable[[str], None]) -> None:
    """Train by each design, and say which to use."""
    from ...backends.cpu import Cpu
    from ...comm.job.topology import discover
    from ...parallel.tuning import measure_designs, render_designs
    from ...proto import read_solver

    if args.gpu is not None:
        raise UserError("tune --designs compares on CPUs so far: leave out --gpu")
    topology = discover(job)
    local = sum(each.host == topology.own.host for each in topology.ranks)
    threads = max(1, topology.own.cores // local)
    param = read_solver(args.designs)
    found = measure_designs(
        job, topology, param, args.designs, lambda: Cpu(threads=threads), args.seconds, report
    )
    report(render_designs(found))


def _make(job: MpiJob, topology: Topology, choice: Choice) -> Communicator:
    """A communicator that uses an algorithm."""
    from ...comm.create import Maker
    from ...comm.tuning.table import Selection

    return Maker(job, topology, Selection(choice.algorithm, chunk=choice.chunk)).flat()


def _measure_gpus(
    args: argparse.Namespace, job: MpiJob, sizes: list[int], report: Callable[[str], None]
) -> dict[str, list[list[Any]]]:
    """The rows for the GPUs of this host."""
    from ...backends.cuda.runtime.startup import import_cupy
    from ...comm.gpu.ipc import Ipc
    from ...comm.gpu.nccl import Nccl
    from ...comm.tuning.measure import measure_gpus

    args, topology = ranks.place(args, job)
    if len(topology.hosts) > 1 or topology.shares_gpu:
        raise UserError("tune --gpu measures ranks of one machine with one GPU each")
    cupy = import_cupy()
    cupy.cuda.Device(int(args.gpu)).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    comms = {"nccl": Nccl(job.world), "ipc": Ipc(job.world)}
    rows = measure_gpus(job, comms, partial(cupy.zeros, dtype="float32"), stream, sizes, report)
    for comm in comms.values():
        comm.close()
    return rows
