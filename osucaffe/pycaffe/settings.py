"""A script's settings for all nets: the device, the random seed, the log."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

from .. import log as log_lines
from ..backends.backend import Backend
from ..errors import UserError

logger = logging.getLogger("osucaffe")

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_ALONE = "a script runs on one device: several train with osucaffe train"


class _Settings:
    gpu = False
    device = 0
    precision: str | None = None
    seed: int | None = None
    nets = 0
    given: Any = None


def set_mode_cpu() -> None:
    """Build the nets that follow for the CPU."""
    _Settings.gpu, _Settings.given = False, None


def set_mode_gpu() -> None:
    """Build the nets that follow for the GPU. Without one, the first net raises UserError, or with
    the environment variable OSUCAFFE_CPU_FALLBACK=1 uses the CPU, and warns."""
    _Settings.gpu, _Settings.given = True, None


def set_device(number: int) -> None:
    """The GPU for the nets that follow."""
    _Settings.device = number


def set_devices(numbers: Sequence[int]) -> None:
    """NVIDIA Caffe's name of the same, for one GPU. UserError for several."""
    if len(numbers) != 1:
        raise UserError(f"set_devices({list(numbers)}): {_ALONE} --gpu 0,1")
    set_device(numbers[0])


def set_precision(precision: str | None) -> None:
    """What a GPU computes in, for the nets that follow: "fp32", "tf32", "bf16" or "fp16" (None: as
    `osucaffe train` does). Arrays and parameters are float32 always. UserError for others."""
    if precision not in (None, *PRECISIONS):
        raise UserError(f"precision {precision!r}: it must be one of {', '.join(PRECISIONS)}")
    _Settings.precision = precision


def set_random_seed(seed: int) -> None:
    """Fillers and random layers of the nets that follow depend on this seed and their order."""
    _Settings.seed, _Settings.nets = seed, 0


def next_seed() -> int | None:
    """The seed of the next net, or None if the script set none."""
    if _Settings.seed is None:
        return None
    _Settings.nets += 1
    return _Settings.seed + _Settings.nets - 1


def use(backend: Backend) -> None:
    """Build the nets that follow on this backend."""
    _Settings.given = backend


def backend() -> Any:
    """The backend set by `use`, or that of the current device."""
    _show_log()
    if _Settings.given is not None:
        return _Settings.given
    return _cuda(_Settings.device, _Settings.precision) if _Settings.gpu else _cpu()


@functools.cache
def _cpu() -> Any:
    from ..backends.cpu import Cpu

    return Cpu()


@functools.cache
def _cuda(device: int, precision: str | None) -> Any:
    from ..backends.cuda import Cuda

    try:
        return Cuda(device, precision)
    except UserError as error:
        if os.environ.get("OSUCAFFE_CPU_FALLBACK", "0") not in ("", "0"):
            logger.warning("Computing on the CPU, as OSUCAFFE_CPU_FALLBACK allows: %s", error)
            return _cpu()
        raise UserError(
            "after caffe.set_mode_gpu() (set_mode_cpu() is the CPU, and so is this with "
            f"OSUCAFFE_CPU_FALLBACK=1): {error}"
        ) from None


def has_nccl() -> bool:
    """False: a script runs on one device. Several train with `osucaffe train`."""
    return False


def solver_count() -> int:
    """How many solvers train together: 1."""
    return 1


def solver_rank() -> int:
    """Which of them this is: 0."""
    return 0


def set_solver_count(count: int) -> None:
    """Caffe's scripts for one GPU say 1. UserError for more."""
    if count != 1:
        raise UserError(f"set_solver_count({count}): {_ALONE} --ranks {count}")


def set_solver_rank(rank: int) -> None:
    """Caffe's scripts for one GPU say 0. UserError for others."""
    if rank:
        raise UserError(f"set_solver_rank({rank}): {_ALONE} --ranks N")


def set_multiprocess(several: bool) -> None:
    """Whether the solvers are processes, of which a script has one: either is right."""


def init_log(level: int | None = None) -> None:
    """Send log lines to standard error, from this level on: 0 all, 1 warnings, 2 errors, 3 none.

    level: default, the environment variable GLOG_minloglevel, or else 0.
    """
    log_lines.start()
    logger.setLevel(log_lines.least_level(level))


def _show_log() -> None:
    """Scripts expect to see the log, from their first net on."""
    if not logger.handlers:
        init_log()


def log(message: str) -> None:
    """Write a line to the log."""
    _show_log()
    logger.info(message)


class Timer:
    """Measures the time from `start` to `stop`."""

    def __init__(self) -> None:
        self._begun = self._ended = 0.0

    def start(self) -> None:
        """Begin."""
        backend().synchronize()
        self._begun = time.perf_counter()

    def stop(self) -> None:
        """End, when the device has done its work."""
        backend().synchronize()
        self._ended = time.perf_counter()

    @property
    def ms(self) -> float:
        """The milliseconds in between."""
        return (self._ended - self._begun) * 1e3
