"""Starting the ranks of a command, by mpiexec, whose parent it stays.

It imports little: the ranks import what they need.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ... import log
from ...comm.job.job import launched_by
from ...errors import UserError
from ...options.kinds import names
from ..early_exit import Ended
from . import ranks_per_gpu, restarts

if TYPE_CHECKING:
    from ..options import Device, Ranks
    from ..train.options import Train

TERMINAL = "OSUCAFFE_TERMINAL"
"""The environment variable in which `launch` passes HOST:PATH of its terminal to rank 0."""
_SCHEDULERS = (
    *("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE", "COBALT_JOBID", "FLUX_JOB_ID"),
)


def launch(ranks: Ranks, device: Device) -> None:
    """Run this command by mpiexec if the options request ranks that are not yet started, and end
    with its exit code. UserError, also if MPI is not installed."""
    count = ranks.ranks or len(gpu_numbers(device.gpu)) or 1
    if count > 1 and not launched_by():
        device.check()
        _prepare(count, device)
        raise Ended(restarts.run(_command(count), {})[0])


def launch_training(options: Train, check: Callable[[Train], None]) -> None:
    """Like `launch`, for a training, which may be restarted, or share GPUs.

    check: called before that, to report an error once instead of on every rank.
    """
    ranks, device = options.ranks, options.device
    shares = ranks_per_gpu.is_requested(options)
    if launched_by() or restarts.watched() or ranks_per_gpu.started():
        return
    gpus = gpu_numbers(device.gpu)
    count = ranks.ranks or (len(gpus) or 1) + options.servers.servers
    if count == 1 and not ranks.max_restarts and not shares:
        return
    check(options)
    _prepare(count, device)
    if shares:
        raise Ended(ranks_per_gpu.run(options, len(gpus), _command))
    command = _command(count)
    if ranks.max_restarts:
        same = itertools.repeat(restarts.Attempt(command, {}))
        attempts = restarts.attempts(options, count, gpus, _command) if ranks.elastic else same
        raise Ended(restarts.watch_over(options, attempts))
    raise Ended(restarts.run(command, {})[0])


def _prepare(count: int, device: Device) -> None:
    """Let rank 0 have this terminal, and keep ranks without GPUs on the loopback."""
    if sys.stderr and sys.stderr.isatty():
        os.environ[TERMINAL] = f"{platform.node()}:{os.ttyname(sys.stderr.fileno())}"
    if device.gpu is None and count > 1:
        _stay_on_loopback()


def _command(ranks: int, *more: str) -> list[str]:
    """The command line that starts this command, with more options, on this many ranks."""
    command = [sys.executable, "-P", "-m", "osucaffe", *log.command, *more]
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


def gpu_numbers(option: str | None) -> list[str]:
    """The GPU numbers in --gpu. UserError if they are invalid, or do not exist."""
    if option is None:
        return []
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
