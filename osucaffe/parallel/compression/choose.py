"""Owns the values of --compression, and the hook that each stands for."""

from __future__ import annotations

from collections.abc import Callable

from ...comm.communicator import Communicator
from ...errors import UserError
from ..buckets import NetLayout
from ..hook import GradientHook
from .low_rank import PowerSgd
from .quantized import EightBits, Signs
from .sparse import RandomK, TopK

Make = Callable[[Communicator, NetLayout, Callable[[], int]], GradientHook]


def choose_hook(text: str) -> Make | None:
    """What makes the hook that `--compression` names; None for "none". UserError."""
    kind, _, number = text.partition(":")
    try:
        if text == "none":
            return None
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
