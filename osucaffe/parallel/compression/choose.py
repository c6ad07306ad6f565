"""Owns the hook that a design stands for: the values of --compression, and --reproducible."""

from __future__ import annotations

from collections.abc import Callable

from ... import plugins
from ...comm.communicator import Communicator
from ...errors import UserError
from ..buckets import NetLayout
from ..config import ParallelConfig
from ..hook import GradientHook
from ..reproducible import ReproducibleSum

Make = Callable[[Communicator, NetLayout, Callable[[], int]], GradientHook]


def choose_hook(config: ParallelConfig) -> Make | None:
    """What makes the design's hook; None where it has none. UserError."""
    text = config.compression
    if text == "none":
        return ReproducibleSum if config.reproducible else None
    kind, colon, given = text.partition(":")
    hook = plugins.find(plugins.COMPRESSION, kind)
    if hook is not None and bool(colon) == (hook.parameter is not None):
        try:
            values = [hook.parameter(given)] if colon else []
            return lambda comm, net, iteration: hook(comm, net, iteration, *values)
        except ValueError:
            pass
    raise UserError(
        f"--compression {text}: choose none, topk:SHARE or randomk:SHARE with a share of the "
        "gradients above 0 and up to 1, powersgd:RANK, 8bit or sign"
    )
