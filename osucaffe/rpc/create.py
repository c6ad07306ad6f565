"""What makes the channels of this folder: sockets with shared memory and UCX, and gRPC."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from ..comm.job.handshake import connect_all
from ..comm.job.job import MpiJob
from ..comm.job.links import find_interface
from ..comm.job.topology import Topology

if TYPE_CHECKING:
    from .adaptive import Adaptive
    from .grpc_stream import GrpcStream
    from .ucx import Ucx

logger = logging.getLogger("osucaffe")


def adaptive(
    job: MpiJob,
    topology: Topology,
    interface: str | None = None,
    *,
    busy: bool = False,
    direct: bool = True,
    everyone: bool = False,
) -> Adaptive:
    """Sockets, memory or UCX, used as each message's size asks for. See `make_channel`. everyone:
    UCX carries the messages between all ranks."""
    from .adaptive import Adaptive
    from .direct import find_direct

    name, address = find_interface(interface, alone=len(topology.hosts) == 1)
    processes = find_direct(job.rank, job.gather) if direct and not everyone else {}
    local = all(len(others) == job.size - 1 for others in job.gather(processes))
    links = connect_all(job.rank, job.size, job.gather, address, local=local)
    try_fabric = direct or everyone
    fabric = _find_fabric(job, topology, name, everyone=everyone) if try_fabric else None
    return Adaptive(job.rank, job.size, links, processes, fabric=fabric, busy=busy)


ucx = functools.partial(adaptive, everyone=True)
"""UCX for all messages."""


def grpc(
    job: MpiJob, topology: Topology, interface: str | None = None, *, busy: bool = False,
    direct: bool = True,
) -> GrpcStream:  # fmt: skip
    """Streams of gRPC. See `make_channel`."""
    from .grpc_stream import GrpcStream

    _, address = find_interface(interface, alone=len(topology.hosts) == 1)
    return GrpcStream(job.rank, job.size, job.gather, address, busy=busy)


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
