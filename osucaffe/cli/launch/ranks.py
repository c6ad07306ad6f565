"""Owns the setup of a job's running ranks: their devices and process groups."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...backends.cores import computing_threads
from ...comm.create import CommConfig, make_communicator
from ...comm.job import links
from ...comm.job.job import Job, MpiJob
from ...comm.job.topology import Topology, discover
from ...data.resident.sharded import Neighbours
from ...errors import UserError
from ...parallel.compression.choose import choose_hook
from ...parallel.config import ParallelConfig
from ...parallel.servers.shards import Consistency
from ...parallel.split import OPTION
from ...solvers.process_group import ProcessGroup
from .. import options
from . import comm_profile, mps, ranks_per_gpu, restarts
from .start import TERMINAL, gpu_numbers

if TYPE_CHECKING:
    from ...parallel.servers.training import Roles

logger = logging.getLogger("osucaffe")


def check_size(args: argparse.Namespace, job: Job) -> None:
    """UserError if a launcher started another number of ranks than --ranks."""
    if args.ranks and job.size != args.ranks:
        raise UserError(f"--ranks {args.ranks}, but {job.size} were started: leave it out")
    if args.servers and job.size == 1:
        raise UserError(f"--servers {args.servers}: one rank was started: give --ranks, too")


def join_parent(job: Job) -> None:
    """Let rank 0 have the signals of `launch`, and write to its terminal: mpiexec gives it a
    pipe."""
    restarts.tell_parent(job)
    host, _, path = os.environ.pop(TERMINAL, "").partition(":")
    if not path or job.rank or host != platform.node():
        return
    with contextlib.suppress(OSError):
        terminal = os.open(path, os.O_WRONLY | os.O_NOCTTY)
        os.dup2(terminal, sys.stderr.fileno())
        os.close(terminal)


def check_communication(args: argparse.Namespace) -> None:
    """UserError for a kind, an algorithm or a tuning table that does not exist."""
    make_communicator(Job(), discover(Job()), _comm_config(args))
    Consistency.parse(args.consistency)
    config = _parallel_config(args)
    choose_hook(config)
    config.check(args.gradient_type)
    split = config.split_inner_products != "none"
    if design := OPTION if split else config.hooked:
        for other, given in (
            ("--servers", args.servers),
            ("--comm_profile", args.comm_profile and not split),
            ("--bucket_mb auto", options.tunes_bucket(args) and not config.reproducible),
        ):
            if given:
                raise UserError(f"{design} does not go with {other}: leave one of them out")


def assign_devices(args: argparse.Namespace, job: Job) -> tuple[argparse.Namespace, Topology]:
    """The options for this rank, with its GPU or its share of the cores; and the topology of all
    ranks."""

    def config(**chosen: Any) -> argparse.Namespace:
        return argparse.Namespace(**vars(args) | chosen)

    topology = discover(job)
    if job.size == 1:
        return config(gpu="0" if args.gpu == "all" else args.gpu), topology
    local = sum(peer.host == topology.local.host for peer in topology.ranks)
    threads = args.threads or computing_threads(local)
    if args.gpu is None:
        return config(threads=threads), topology
    chosen = gpu_numbers(args.gpu)
    if job.rank >= job.size - args.servers:
        cpu = {"gpu": None, "precision": None, "no_graph": False, "decode": "host"}
        return config(threads=threads, **cpu), discover(job)
    gpu = chosen[topology.local_rank % len(chosen)]
    chosen_here = {"gpu": gpu}
    if getattr(args, "decode", None) == "auto":  # not measured during an exchange
        chosen_here["decode"] = "host"
    topology = discover(job, *identify(int(gpu)))
    if job.rank == 0 and topology.shares_gpu and not ranks_per_gpu.started() and not mps.running():
        logger.warning(
            "Ranks share a GPU, and MPS is off: it computes for one at a time. --ranks_per_gpu N "
            "in place of --ranks starts them under MPS, and --ranks_per_gpu auto finds N"
        )
    return config(**chosen_here), topology


def watch_links(args: argparse.Namespace, job: Job, topology: Topology) -> None:
    """End the job if a host, or a link to it, is lost."""
    if args.comm_timeout:
        links.watch(job, topology, args.interface)


def make_process_group(
    args: argparse.Namespace, job: Job, topology: Topology, roles: Roles | None = None
) -> ProcessGroup | None:
    """The process group for these options; None for a single process."""
    if job.size == 1:
        check_communication(args)
    if job.size == 1 and not args.reproducible:
        if args.batches_of == 1:
            return None
        from ...parallel.batch import Alone

        return Alone(args.batches_of)
    config = _parallel_config(args)
    if options.tunes_bucket(args):
        from ...parallel.tuning import Tuned

        if roles is not None or args.comm_profile:
            other = "--servers" if roles is not None else "--comm_profile"
            raise UserError(f"--bucket_mb auto does not go with {other}: give it a number")
        return Tuned(job, topology, _comm_config(args), config)
    report = partial(comm_profile.write, args.comm_profile)
    if roles is not None and args.comm_profile:
        from ...parallel.servers.profile import ProfiledServed

        how = topology, _comm_config(args), config
        return ProfiledServed(report, args.channel, roles, *how)
    if roles is not None:
        from ...parallel.servers.training import Served

        return Served(roles, topology, _comm_config(args), config)
    if args.comm_profile:
        from ...parallel.profile import Profiled

        return Profiled(report, job, topology, _comm_config(args), config)
    from ...parallel.data_parallel import DataParallel

    return DataParallel(job, topology, _comm_config(args), config)


def assign_roles(args: argparse.Namespace, job: Job, topology: Topology) -> Roles | None:
    """The roles of the ranks, if any are to serve."""
    if not args.servers or not isinstance(job, MpiJob):
        return None
    from ...comm.channels.create import make_channel
    from ...parallel.servers.training import assign_roles

    busy = args.channel_wait == "busy"
    channel = make_channel(job, topology, args.channel, args.interface, busy=busy)
    return assign_roles(job, args.servers, Consistency.parse(args.consistency), channel)


def neighbours(args: argparse.Namespace, job: Job, topology: Topology) -> Neighbours | None:
    """The ranks whose GPUs may share cached records: all of the job's, if they are on one host and
    each has its own GPU."""
    alone = topology.local.gpu is None or topology.shares_gpu or len(topology.hosts) > 1
    if job.size == 1 or alone or args.servers or args.cache != "device":
        return None
    from ...comm.gpu.peers import HostRanks

    return HostRanks(job) if isinstance(job, MpiJob) else None


def _parallel_config(args: argparse.Namespace) -> ParallelConfig:
    """The design of the exchange from the options."""
    return ParallelConfig(
        args.aggregation,
        args.propagation,
        options.bucket_nbytes(args),
        args.scal,
        args.batches_of,
        args.compression,
        args.local_steps,
        args.local_after,
        args.outer_lr,
        args.outer_momentum,
        args.split_inner_products,
        args.reproducible,
    )


def _comm_config(args: argparse.Namespace) -> CommConfig:
    """The communicator settings from the options."""
    return CommConfig(
        kind=args.comm,
        algorithm=args.algorithm,
        table=args.tuning,
        timeout=args.comm_timeout,
        group=args.group,
        gradient_dtype=args.gradient_type,
    )


def identify(gpu: int) -> tuple[str, str]:
    """The UUID and the name of a GPU; this process is bound to the cores near it."""
    from ...backends.cuda.runtime.startup import import_cupy

    cupy = import_cupy()
    properties = cupy.cuda.runtime.getDeviceProperties(gpu)
    bus = cupy.cuda.runtime.deviceGetPCIBusId(gpu).lower()
    near = Path(f"/sys/bus/pci/devices/{bus}/local_cpulist")
    try:
        cores: set[int] = set()
        for span in near.read_text().strip().split(","):
            first, _, last = span.partition("-")
            cores |= set(range(int(first), int(last or first) + 1))
        os.sched_setaffinity(0, cores & os.sched_getaffinity(0) or cores)
    except (OSError, ValueError):
        pass  # the system does not tell: the process stays where it is
    return bytes(properties["uuid"]).hex(), properties["name"].decode()
