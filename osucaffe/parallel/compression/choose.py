"""Owns the hook that a design stands for: the values of --compression, and --reproducible."""

from __future__ import annotations

from collections.abc import Callable

from ...comm.communicator import Communicator
from ...errors import UserError
from ..buckets import NetLayout
from ..config import ParallelConfig
from ..hook import GradientHook
from ..reproducible import ReproducibleSum
from .low_rank import PowerSgd
from .quantized import EightBits, Signs
from .sparse import RandomK, TopK

Make = Callable[[Communicator, NetLayout, Callable[[], int]], GradientHook]


def choose_hook(config: ParallelConfig) -> Make | None:
    """What makes the design's hook; None where it has none. UserError."""
    text = config.compression
    kind, _, number = text.partition(":")
    try:
        if text == "none":
            return ReproducibleSum if config.reproducible else None
        if text == "8bit":
            return EightBits
        if text == "sign":
            return Signs
        if kind in ("topk", "randomk") and 0 < (share := float(number)) <= 1:
            sparse = TopK if kind == "topk" else RandomK
            return lambda comm, net, iteration: sparse(comm, net, iteration, share)
        if kind == "powersgd" and (rank := int(number)) > 0:
            return lambda comm, net, iteration: PowerSgd(comm, net, iteration, rank)
    except ValueError:
        pass
    raise UserError(
        f"--compression {text}: choose none, topk:SHARE or randomk:SHARE with a share of the "
        "gradients above 0 and up to 1, powersgd:RANK, 8bit or sign"
    )
