"""Owns the making of a channel among all ranks of a job, by name."""

from __future__ import annotations

from ...errors import UserError
from ..job import MpiJob
from ..topology import Topology
from . import KINDS
from .channel import Channel


def make_channel(
    job: MpiJob,
    topology: Topology,
    kind: str,
    interface: str | None = None,
    *,
    busy: bool = False,
    direct: bool = True,
) -> Channel:
    """A channel of this kind. All ranks call it together. interface: what sockets listen on (None:
    the loopback's on one host, else the first that is up). direct: `adaptive` may write into the
    memory of processes of its host. UserError."""
    if kind == "mpi":
        from .mpi import MpiChannel

        return MpiChannel(job.mpi, job.world, busy=busy)
    from .direct import find_direct
    from .meeting import connect_all, own_address

    address = own_address(interface, alone=len(topology.hosts) == 1)
    if kind == "adaptive":
        from .adaptive import Adaptive

        processes = find_direct(job.rank, job.gather) if direct else {}
        local = all(len(each) == job.size - 1 for each in job.gather(processes))
        links = connect_all(job.rank, job.size, job.gather, address, local=local)
        return Adaptive(job.rank, job.size, links, processes, busy=busy)
    if kind == "grpc":
        from .grpc_stream import GrpcStream

        return GrpcStream(job.rank, job.size, job.gather, address, busy=busy)
    raise UserError(f"--channel {kind}: choose one of {', '.join(KINDS)}")
