"""Owns the options for parameter servers, and which ranks they make serve."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...comm.channels import KINDS
from .. import options

if TYPE_CHECKING:
    from ...comm.job.job import Job
    from ...comm.job.topology import Topology
    from ...parallel.servers.training import Roles


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Declare the options."""
    add = group.add_argument
    add(
        "--servers",
        metavar="K",
        type=options.positive,
        default=0,
        help="parameter servers: the last K of the ranks do not train, but hold and update the "
        "weights",
    )
    add(
        "--consistency",
        metavar="KIND",
        default="sync",
        help="with --servers: an update is of all workers' gradients (sync, the default), or of "
        "each one's; then none gets more than N iterations ahead of another (ssp:N), or any number "
        "(async)",
    )
    add(
        "--channel",
        choices=KINDS,
        default="mpi",
        help="with --servers: what carries the messages (default: mpi)",
    )
    add_waiting(add)


def add_waiting(add: Callable[..., object]) -> None:
    """Declare how a channel waits, and where it listens."""
    add(
        "--channel_wait",
        choices=("sleep", "busy"),
        default="sleep",
        help="who waits for a message sleeps after a few looks, or keeps looking, which is faster "
        "where there are more cores than threads (default: sleep)",
    )
    add(
        "--interface",
        metavar="NAME",
        help="what other channels than mpi listen on (default: the loopback's on one host, else "
        "the first that is up)",
    )


def count(args: argparse.Namespace) -> int:
    """How many ranks are to serve: none where a command has no such option."""
    wanted: int = getattr(args, "servers", 0)
    return wanted


def check(args: argparse.Namespace) -> None:
    """UserError for a consistency that there is not."""
    from ...parallel.servers.shards import Consistency

    Consistency.parse(args.consistency)


def assign_roles(args: argparse.Namespace, job: Job, topology: Topology) -> Roles | None:
    """Which ranks serve, if any are to."""
    if not args.servers:
        return None
    from ...comm.job.job import MpiJob

    if not isinstance(job, MpiJob):
        return None
    from ...comm.channels.create import make_channel
    from ...parallel.servers.shards import Consistency
    from ...parallel.servers.training import assign_roles

    busy = args.channel_wait == "busy"
    channel = make_channel(job, topology, args.channel, args.interface, busy=busy)
    return assign_roles(job, args.servers, Consistency.parse(args.consistency), channel)
