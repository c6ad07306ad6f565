"""The setup of a job's running ranks: their devices and process groups."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import plugins
from ...backends.cores import computing_threads
from ...comm.create import make_communicator
from ...comm.job import links
from ...comm.job.job import Job, MpiJob
from ...comm.job.topology import Topology, discover
from ...data.config import DataConfig
from ...data.resident.sharded import Neighbours
from ...errors import UserError
from ...parallel.choose import choose_hook
from ...parallel.config import SPLIT, TUNED, ParallelConfig, ServerConfig
from ...parallel.exchange import choose_exchange
from ...solvers.process_group import ProcessGroup
from ..options import Device, Ranks
from ..train.options import Train
from . import mps, ranks_per_gpu, restarts
from .start import TERMINAL, gpu_numbers

logger = logging.getLogger("osucaffe")


def check_size(ranks: Ranks, job: Job, servers: int = 0) -> None:
    """UserError if a launcher started another number of ranks than --ranks."""
    if ranks.ranks and job.size != ranks.ranks:
        raise UserError(f"--ranks {ranks.ranks}, but {job.size} were started: leave it out")
    if servers and job.size == 1:
        raise UserError(f"--servers {servers}: one rank was started: give --ranks, too")


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


def check_communication(options: Train) -> None:
    """UserError for a kind, an algorithm or a tuning table that does not exist."""
    make_communicator(Job(), discover(Job()), options.comm)
    if options.servers.consistency != ServerConfig.consistency:
        plugins.need(plugins.DESIGNS, "servers").Consistency.parse(options.servers.consistency)
    config = options.parallel
    choose_hook(config)
    choose_exchange(config)
    config.check(options.comm.gradient_dtype)
    split = config.split_inner_products != "none"
    brought = f"--aggregation {config.aggregation}" if config.brought else ""
    if design := SPLIT if split else config.hooked or brought:
        for other, given in (
            ("--servers", options.servers.servers),
            ("--bucket_mb auto", config.bucket == TUNED and not config.reproducible),
        ):
            if given:
                raise UserError(f"{design} cannot be combined with {other}")


def assign_devices(device: Device, job: Job, servers: int = 0) -> tuple[Device, Topology]:
    """Where this rank runs, its GPU or its share of the cores; and the topology of all ranks."""
    topology = discover(job)
    if job.size == 1:
        return (replace(device, gpu="0") if device.gpu == "all" else device), topology
    on_cores = replace(device, threads=device.threads or computing_threads(topology.here))
    if device.gpu is None:
        return on_cores, topology
    chosen = gpu_numbers(device.gpu)
    if job.rank >= job.size - servers:
        return Device(threads=on_cores.threads), discover(job)
    gpu = chosen[topology.local_rank % len(chosen)]
    topology = discover(job, *identify(int(gpu)))
    if job.rank == 0 and topology.shares_gpu and not ranks_per_gpu.started() and not mps.running():
        logger.warning(
            "Ranks share a GPU, and MPS is off: it computes for one at a time. --ranks_per_gpu N "
            "in place of --ranks starts them under MPS, and --ranks_per_gpu auto finds N"
        )
    return replace(device, gpu=gpu), topology


def configure_data(options: Train, job: Job, topology: Topology) -> DataConfig:
    """How this rank reads, which shares its host's memory and cores with the others there."""
    data, sharers = options.data, topology.here
    if job.size > 1 and options.device.gpu is not None and data.decode == "auto":
        data = replace(data, decode="host")  # not measured during an exchange
    return replace(data, sharers=sharers, neighbours=neighbours(options, job, topology))


def watch_links(options: Train, job: Job, topology: Topology) -> None:
    """End the job if a host, or a link to it, is lost."""
    if options.comm.timeout:
        links.watch(job, topology, options.servers.interface)


def make_process_group(
    options: Train, job: Job, topology: Topology, roles: Any = None
) -> ProcessGroup | None:
    """The process group for these options; None for a single process."""
    config, comm = options.parallel, options.comm
    if job.size == 1:
        check_communication(options)
    if job.size == 1 and not config.reproducible:
        if config.of == 1:
            return None
        from ...parallel.batch import SingleRank

        return SingleRank(config.of)
    if config.bucket == TUNED:
        from ...parallel.tuning import Tuned

        if roles is not None or options.comm_profile:
            other = "--servers" if roles is not None else "--comm_profile"
            raise UserError(f"--bucket_mb auto cannot be combined with {other}: give a number")
        return Tuned(job, topology, comm, replace(config, bucket=ParallelConfig.bucket))
    made: ProcessGroup
    if options.comm_profile:
        profile = plugins.need(plugins.DESIGNS, "comm_profile")
        made = profile.make_process_group(options, job, topology, roles)
        return made
    if roles is not None:
        made = plugins.need(plugins.DESIGNS, "servers").ServerDataParallel(
            roles, topology, comm, config
        )
        return made
    from ...parallel.data_parallel import DataParallel

    return DataParallel(job, topology, comm, config)


def assign_roles(config: ServerConfig, job: Job, topology: Topology) -> Any:
    """The roles of the ranks, if any are to serve: `study/servers/training.py: Roles`."""
    if not config.servers or not isinstance(job, MpiJob):
        return None
    from ...comm.channels.create import make_channel

    design = plugins.need(plugins.DESIGNS, "servers")
    channel = make_channel(job, topology, config.channel, config.interface, busy=config.busy)
    consistency = design.Consistency.parse(config.consistency)
    return design.assign_roles(job, config.servers, consistency, channel)


def neighbours(options: Train, job: Job, topology: Topology) -> Neighbours | None:
    """The ranks whose GPUs may share cached records: all of the job's, if they are on one host and
    each has its own GPU."""
    alone = topology.local.gpu is None or topology.shares_gpu or len(topology.hosts) > 1
    if job.size == 1 or alone or options.servers.servers or options.data.cache != "device":
        return None
    from ...comm.gpu.peers import HostRanks

    return HostRanks(job) if isinstance(job, MpiJob) else None


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
