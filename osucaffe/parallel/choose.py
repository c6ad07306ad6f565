"""The hook that a design stands for: the values of --compression, and --reproducible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import plugins
from ..comm.algorithms import Operation
from ..comm.communicator import Communicator
from ..errors import UserError
from .buckets import Bucket, Layout, NetLayout
from .config import ParallelConfig
from .hook import GradientHook


@dataclass(frozen=True)
class HookDesign:
    """What makes the hook of a design. given: what it takes besides."""

    kind: type[GradientHook]
    given: Sequence[Any] = ()

    def make(
        self, comm: Communicator, net: NetLayout, iteration: Callable[[], int]
    ) -> GradientHook:
        """The hook of a net."""
        return self.kind(comm, net, iteration, *self.given)

    def messages(self, net: Layout, bucket: Bucket, ranks: int) -> list[tuple[Operation, int]]:
        """See `GradientHook.messages`."""
        return self.kind.messages(net, bucket, ranks, *self.given)


def choose_hook(config: ParallelConfig) -> HookDesign | None:
    """The design's hook; None where it has none. UserError."""
    text = config.compression
    if text == "none":
        if not config.reproducible:
            return None
        return HookDesign(plugins.need(plugins.DESIGNS, "reproducible"))
    kind, *given = text.split(":", 1)
    module, *words = text.split(":", 2)
    known = kind in plugins.names(plugins.COMPRESSION)
    if words and not known and plugins.is_place(f"{module}:{words[0]}"):
        kind, given = f"{module}:{words[0]}", words[1:]
    hook = plugins.find(plugins.COMPRESSION, kind)
    if hook is not None and bool(given) == (hook.parameter is not None):
        try:
            return HookDesign(hook, [hook.parameter(*given)] if given else [])
        except ValueError:
            pass
    raise UserError(
        f"--compression {text}: choose none, topk:SHARE or randomk:SHARE with a share of the "
        "gradients above 0 and up to 1, powersgd:RANK, 8bit or sign, or give a module:Class, with "
        "the value that it takes behind another colon"
    )
