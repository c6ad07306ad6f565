"""Owns the settings of training with parameter servers."""

from __future__ import annotations

from dataclasses import dataclass

from ...comm.channels import KINDS
from ...comm.config import INTERFACE
from ...options.flags import flag, like
from ...options.kinds import Kind, positive

CHANNEL_WAIT = flag(
    "how to wait for a message: sleep after a few polls, or keep polling (busy), which is faster "
    "with more cores than threads",
    {"sleep": False, "busy": True},
    False,
    command="sleep",
    name="--channel_wait",
)


@dataclass(frozen=True)
class ServerConfig:
    """How many ranks serve, when weights are updated, and how messages travel. consistency: see
    `shards.Consistency`."""

    servers: int = flag(
        "parameter servers: the last K of the ranks do not train, but hold and update the weights",
        Kind("K", positive),
        0,
        excluded_by=("--find_lr", "--elastic", "--ranks_per_gpu"),
    )
    consistency: str = flag(
        "with --servers: average all workers' gradients (sync, the default); ignore the slowest B "
        "(backup:B); update with each worker's, none more than N iterations ahead of another "
        "(ssp:N), or without a bound (async)",
        "KIND",
        "sync",
    )
    channel: str = flag("with --servers: what carries the messages", KINDS, "mpi")
    busy: bool = like(CHANNEL_WAIT)
    interface: str | None = like(INTERFACE)
