"""Owns starting the ranks of a command, by mpiexec, whose parent it stays.

It imports little: the ranks import what they need.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from ...comm.job.job import launched_by
from ...errors import UserError
from ..arguments.options import names
from ..early_exit import Ended
from . import ranks_per_gpu, restarts

TERMINAL = "OSUCAFFE_TERMINAL"
"""The environment variable in which `launch` passes HOST:PATH of its terminal to rank 0."""
_SCHEDULERS = (
    *("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE", "COBALT_JOBID", "FLUX_JOB_ID"),
)


def check_device(args: argparse.Namespace) -> None:
    """UserError for a GPU option without --gpu."""
    if args.gpu is None:
        for option in ("precision", "no_graph"):
            if getattr(args, option, None):
                raise UserError(f"--{option} is for GPUs only: add --gpu 0")
        if getattr(args, "decode", "host") == "gpu":
            raise UserError("--decode gpu is for GPUs only: add --gpu 0")


def launch(
    args: argparse.Namespace, check: Callable[[argparse.Namespace], None] = check_device
) -> None:
    """Run this command by mpiexec if the options request ranks that are not yet started, and end
    with its exit code.

    check: called before that, to report an error once instead of on every rank. UserError, also if
    MPI is not installed.
    """
    if getattr(args, "device", None) == "GPU" and args.gpu is None:  # Caffe's extract_features
        args.gpu = (args.device_id or "0").removeprefix("DEVICE_ID=")
    shares = ranks_per_gpu.is_requested(args)
    if launched_by() or restarts.watched() or ranks_per_gpu.started():
        return
    gpus = [] if args.gpu is None else gpu_numbers(args.gpu)
    ranks = args.ranks or (len(gpus) or 1) + args.servers
    if ranks == 1 and not args.max_restarts and not shares:
        return
    check(args)
    if sys.stderr and sys.stderr.isatty():
        os.environ[TERMINAL] = f"{platform.node()}:{os.ttyname(sys.stderr.fileno())}"
    if shares:
        raise Ended(ranks_per_gpu.run(args, len(gpus), _command))
    if args.gpu is None and ranks > 1:
        _stay_on_loopback()
    command = _command(ranks)
    if args.max_restarts:
        same = itertools.repeat(restarts.Attempt(command, {}))
        attempts = restarts.attempts(args, ranks, gpus, _command) if args.elastic else same
        raise Ended(restarts.watch_over(args, attempts))
    raise Ended(restarts.run(command, {})[0])


def _command(ranks: int, *more: str) -> list[str]:
    """The command line that starts this command, with more options, on this many ranks."""
    command = [sys.executable, "-P", "-m", "osucaffe", *sys.argv[1:], *more]
    return [find_mpiexec(ranks), "-n", str(ranks), *command] if ranks > 1 else command


def _stay_on_loopback() -> None:
    """Keep ranks from listening on the network: all are on this machine, unless a scheduler
    gives mpiexec other hosts. (GPUs choose their paths by themselves.)"""
    if not any(scheduler in os.environ for scheduler in _SCHEDULERS):
        os.environ.setdefault("UCX_NET_DEVICES", "lo")
        os.environ.setdefault("FI_TCP_IFACE", "lo")


def find_mpiexec(ranks: int) -> str:
    """The mpiexec to start ranks with. UserError if MPI is not installed."""
    bin_folder = Path(sys.executable).parent
    mpiexec = shutil.which("mpiexec", path=str(bin_folder)) or shutil.which("mpiexec")
    if mpiexec is None or importlib.util.find_spec("mpi4py") is None:
        raise UserError(
            f'{ranks} ranks need MPI: pip install "osucaffe[mpi]", or load the MPI of this machine'
        )
    return mpiexec


def gpu_numbers(option: str) -> list[str]:
    """The GPU numbers in --gpu. UserError if they are invalid, or do not exist."""
    chosen = names(option)
    if option != "all" and not (chosen and all(number.isdecimal() for number in chosen)):
        raise UserError(f'--gpu {option}: give a number, such as 0, several with commas, or "all"')
    if option != "all" and len(chosen) == 1:
        return chosen  # whether it is there, the backend says
    from ...backends.cuda.runtime.startup import import_cupy

    count = import_cupy().cuda.runtime.getDeviceCount()
    chosen = [str(number) for number in range(count)] if option == "all" else chosen
    if any(int(number) >= count for number in chosen):
        raise UserError(f"--gpu {option}: there are {count} GPUs, numbered from 0")
    return chosen
