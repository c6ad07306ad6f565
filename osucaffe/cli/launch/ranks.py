"""Owns the options for training on several ranks, how `osucaffe train` starts them, and where each
runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .. import options
from ..early_exit import Ended
from . import comm_profile, elastic, rank_options, ranks_per_gpu, restarts, server_options

if TYPE_CHECKING:
    from ...comm.create import CommConfig
    from ...comm.job.job import Job
    from ...comm.job.topology import Topology
    from ...data.resident.sharded import Neighbours
    from ...parallel.servers.training import Roles
    from ...solvers.process_group import ProcessGroup

_TERMINAL = "OSUCAFFE_TERMINAL"
"""The variable in which `launch` leaves HOST:PATH of its terminal for rank 0."""
_SCHEDULERS = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "PE_HOSTFILE",
    "COBALT_JOBID",
    "FLUX_JOB_ID",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group(
        "several ranks",
        "Started by mpiexec or srun, by --ranks, or by --gpu with several numbers.",
    )
    group.add_argument(
        "--ranks", metavar="N", type=options.positive, help="start N ranks on this machine"
    )
    ranks_per_gpu.add_argument(group)
    restarts.add_argument(group)
    elastic.add_argument(group)
    rank_options.add_design(group)
    server_options.add_arguments(group)
    rank_options.add_communication(group)
    comm_profile.add_arguments(group)


def launch(args: argparse.Namespace, check: Callable[[], None] = lambda: None) -> None:
    """Become mpiexec with this command if the options ask for ranks and nothing started them yet;
    with --max_restarts, watch over it.

    check: called before that, to find once what every rank would find. UserError if it does, or
    MPI is not installed.
    """
    from ...comm.job.job import launched_by

    shares = ranks_per_gpu.asked(args)
    if launched_by() or restarts.watched() or ranks_per_gpu.started():
        return
    gpus = [] if args.gpu is None else _gpus(args.gpu)
    wanted = args.ranks or (len(gpus) or 1) + server_options.count(args)
    most = getattr(args, "max_restarts", 0)
    if wanted == 1 and not most and not shares:
        return
    check()
    if sys.stderr and sys.stderr.isatty():
        os.environ[_TERMINAL] = f"{platform.node()}:{os.ttyname(sys.stderr.fileno())}"
    if shares:
        raise Ended(ranks_per_gpu.run(args, len(gpus), _command))
    if args.gpu is None and wanted > 1:
        _stay_on_loopback()
    command = _command(wanted)
    if most:
        same = itertools.repeat(restarts.Attempt(command, {}))
        attempts = elastic.attempts(args, wanted, gpus, _command) if args.elastic else same
        raise Ended(restarts.watch_over(attempts, most, restarts.prefix_of(args.solver)))
    os.execv(command[0], command)


def _command(ranks: int, *more: str) -> list[str]:
    """What starts this command, with more options, as so many ranks."""
    command = [sys.executable, "-P", "-m", "osucaffe", *sys.argv[1:], *more]
    return [find_mpiexec(ranks), "-n", str(ranks), *command] if ranks > 1 else command


def _stay_on_loopback() -> None:
    """Let no rank listen on the network: all are on this machine, unless a cluster's scheduler
    tells mpiexec of others. (GPUs choose their paths by what is there.)"""
    if not any(scheduler in os.environ for scheduler in _SCHEDULERS):
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
        os.environ.setdefault("FI_TCP_IFACE", "lo")


def find_mpiexec(wanted: int) -> str:
    """What starts so many ranks. UserError where MPI is not installed."""
    beside = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=str(beside)) or shutil.which("mpiexec")
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        raise UserError(
            f'{wanted} ranks need MPI: pip install "osucaffe[mpi]", or load the MPI of this machine'
        )
    return mpiexec


def check_size(args: argparse.Namespace, job: Job) -> None:
    """UserError if a launcher started another number of ranks than --ranks asks for."""
    if args.ranks and job.size != args.ranks:
        raise UserError(f"--ranks {args.ranks}, but {job.size} were started: leave it out")
    if (count := server_options.count(args)) and job.size == 1:
        raise UserError(f"--servers {count}: one rank was started: give --ranks, too")


def take_terminal(job: Job) -> None:
    """Let rank 0 write to the terminal that `launch` had: what mpiexec gives it is a pipe."""
    host, _, path = os.environ.pop(_TERMINAL, "").partition(":")
    if not path or job.rank or host != platform.node():
        return
    with contextlib.suppress(OSError):
        terminal = os.open(path, os.O_WRONLY | os.O_NOCTTY)
        os.dup2(terminal, sys.stderr.fileno())
        os.close(terminal)


def check_communication(args: argparse.Namespace) -> None:
    """UserError for a kind, an algorithm or a tuning table that there is not."""
    from ...comm.create import make_communicator
    from ...comm.job.job import Job
    from ...comm.job.topology import discover

    make_communicator(Job(), discover(Job()), _comm_config(args))
    server_options.check(args)


def place(args: argparse.Namespace, job: Job) -> tuple[argparse.Namespace, Topology]:
    """The options as they are for this rank, with its GPU or its share of the cores; and where all
    ranks are."""
    from ...comm.job.topology import discover

    def own(**chosen: Any) -> argparse.Namespace:
        return argparse.Namespace(**vars(args) | chosen)

    topology = discover(job)
    if job.size == 1:
        return own(gpu="0" if args.gpu == "all" else args.gpu), topology
    local = sum(each.host == topology.own.host for each in topology.ranks)
    if args.gpu is None:
        return own(threads=args.threads or max(1, topology.own.cores // local)), topology
    chosen = _gpus(args.gpu)
    if job.rank >= job.size - server_options.count(args):
        threads = args.threads or max(1, topology.own.cores // local)
        cpu = {"gpu": None, "precision": None, "no_graph": False, "decode": "host"}
        return own(threads=threads, **cpu), discover(job)
    gpu = chosen[topology.local_rank % len(chosen)]
    chosen_here = {"gpu": gpu}
    if getattr(args, "decode", None) == "auto":  # beside an exchange engines were not measured
        chosen_here["decode"] = "host"
    return own(**chosen_here), discover(job, *identify(int(gpu)))


def watch_links(args: argparse.Namespace, job: Job, topology: Topology) -> None:
    """Let a host that is gone, or a link to it, end the job."""
    from ...comm.job import links

    if args.comm_timeout:
        links.watch(job, topology, args.interface)


def make_process_group(
    args: argparse.Namespace, job: Job, topology: Topology, roles: Roles | None = None
) -> ProcessGroup | None:
    """The group that the options ask for; None for a rank that was always alone."""
    if job.size == 1:
        check_communication(args)
        return elastic.alone(args)
    from ...parallel.config import ParallelConfig
    from ...parallel.data_parallel import DataParallel

    config = ParallelConfig(
        args.aggregation,
        args.propagation,
        rank_options.bucket_nbytes(args),
        args.scal,
        args.batches_of,
    )
    if rank_options.tunes_bucket(args):
        from ...parallel.tuning import Tuned

        if roles is not None or args.comm_profile:
            other = "--servers" if roles is not None else "--comm_profile"
            raise UserError(f"--bucket_mb auto does not go with {other}: give it a number")
        return Tuned(job, topology, _comm_config(args), config)
    if roles is not None:
        from ...parallel.servers.training import Served

        return Served(roles, topology, _comm_config(args), config)
    if args.comm_profile:
        from ...parallel.profile import Profiled

        report = comm_profile.writer(args.comm_profile)
        return Profiled(job, topology, _comm_config(args), config, report)
    return DataParallel(job, topology, _comm_config(args), config)


def neighbours(args: argparse.Namespace, job: Job, topology: Topology) -> Neighbours | None:
    """The ranks among whose GPUs records may be divided: all of the job's, if they are on one host
    and each has its own."""
    alone = topology.own.gpu is None or topology.shares_gpu or len(topology.hosts) > 1
    if job.size == 1 or alone or server_options.count(args) or args.cache != "device":
        return None
    from ...comm.gpu.peers import HostRanks
    from ...comm.job.job import MpiJob

    return HostRanks(job) if isinstance(job, MpiJob) else None


def _comm_config(args: argparse.Namespace) -> CommConfig:
    """The communicator that the options ask for."""
    from ...comm.create import CommConfig

    return CommConfig(
        kind=args.comm,
        algorithm=args.algorithm,
        table=args.tuning,
        timeout=args.comm_timeout,
        group=args.group,
        gradient_dtype=args.gradient_type,
    )


def _gpus(wanted: str) -> list[str]:
    """The numbers of the GPUs that --gpu names. UserError where they are none, or not there."""
    from ...backends.cuda.runtime.startup import import_cupy

    chosen = options.names(wanted)
    if wanted != "all" and not (chosen and all(number.isdecimal() for number in chosen)):
        raise UserError(f'--gpu {wanted}: give a number, such as 0, several with commas, or "all"')
    if wanted != "all" and len(chosen) == 1:
        return chosen  # whether it is there, the backend says
    count = import_cupy().cuda.runtime.getDeviceCount()
    chosen = [str(number) for number in range(count)] if wanted == "all" else chosen
    if any(int(number) >= count for number in chosen):
        raise UserError(f"--gpu {wanted}: there are {count} GPUs, numbered from 0")
    return chosen


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
