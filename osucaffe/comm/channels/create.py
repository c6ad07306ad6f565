"""Owns the creation of a channel among all ranks of a job, by name."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...errors import UserError
from ..job.job import MpiJob
from ..job.topology import Topology
from . import KINDS
from .channel import Channel

if TYPE_CHECKING:
    from .ucx import Ucx

logger = logging.getLogger("osucaffe")


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
    the loopback on one host, else the first that is up). direct: `adaptive` may write into the
    memory of processes of its host, and let adapters write into that of other hosts. UserError."""
    if kind == "mpi":
        from .channel import MpiChannel

        return MpiChannel(job.mpi, job.world, busy=busy)
    from ..job.handshake import connect_all
    from ..job.links import find_interface
    from .direct import find_direct

    name, address = find_interface(interface, alone=len(topology.hosts) == 1)
    if kind in ("adaptive", "ucx"):
        from .adaptive import Adaptive

        everyone = kind == "ucx"
        processes = find_direct(job.rank, job.gather) if direct and not everyone else {}
        local = all(len(others) == job.size - 1 for others in job.gather(processes))
        links = connect_all(job.rank, job.size, job.gather, address, local=local)
        try_fabric = direct or everyone
        fabric = _find_fabric(job, topology, name, everyone=everyone) if try_fabric else None
        return Adaptive(job.rank, job.size, links, processes, fabric=fabric, busy=busy)
    if kind == "grpc":
        from .grpc_stream import GrpcStream

        return GrpcStream(job.rank, job.size, job.gather, address, busy=busy)
    raise UserError(f"--channel {kind}: choose one of {', '.join(KINDS)}")


def _find_fabric(job: MpiJob, topology: Topology, interface: str, *, everyone: bool) -> Ucx | None:
    """UCX to all other ranks (everyone); or to those of other hosts, if all hosts have adapters
    that only it makes full use of; else None."""
    from .ucx import Ucx, has_fabric, is_available

    alone = len(topology.hosts) == 1
    if alone and not everyone:
        return None
    adapters = all(job.gather(has_fabric() and is_available()))
    if not (everyone or adapters):
        return None
    others = [peer for peer in topology.ranks if peer.rank != job.rank]
    near = {peer.rank for peer in others if peer.host == topology.local.host}
    ranks = [peer.rank for peer in others if everyone or peer.rank not in near]
    if job.rank == 0:
        what = "all messages" if everyone else "messages between hosts"
        logger.info("UCX carries %s%s", what, "" if adapters else ", over TCP or shared memory")
    # Over TCP, UCX lets any peer write to an address it names: used only on request.
    settings = {"TLS": "ib,sm"} if adapters else {"TLS": "tcp,sm", "NET_DEVICES": interface}
    if alone:
        settings = {"TLS": "sm"}
    return Ucx(job.rank, ranks, job.gather, near=near, settings=settings)
