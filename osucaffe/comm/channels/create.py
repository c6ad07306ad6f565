"""The creation of a channel among all ranks of a job, by name."""

from __future__ import annotations

from ... import plugins
from ...errors import UserError
from ..job.job import MpiJob
from ..job.topology import Topology
from .channel import Channel, MpiChannel


def make_channel(
    job: MpiJob,
    topology: Topology,
    kind: str,
    interface: str | None = None,
    *,
    busy: bool = False,
    direct: bool = True,
) -> Channel:
    """A channel of this kind: MPI's messages, or what a function of that name makes, an entry point
    that takes the other arguments. All ranks call it together. UserError.

    interface: what sockets listen on (None: the loopback on one host, else the first that is up).
    busy: look for messages all the time. direct: it may write into the memory of processes of its
    host, and let adapters write into that of other hosts."""
    if kind == "mpi":
        return MpiChannel(job.mpi, job.world, busy=busy)
    make = plugins.find(plugins.CHANNELS, kind)
    if make is None:
        known = ", ".join(["mpi", *plugins.names(plugins.CHANNELS)])
        raise UserError(f"--channel {kind}: choose one of {known}")
    channel: Channel = make(job, topology, interface, busy=busy, direct=direct)
    return channel
