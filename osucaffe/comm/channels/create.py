"""Owns the making of a channel among all ranks of a job, by name."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ...errors import UserError
from ..job import MpiJob
from ..topology import Topology
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
    the loopback's on one host, else the first that is up). direct: `adaptive` may write into the
    memory of processes of its host. UserError."""
    if kind == "mpi":
        from .mpi import MpiChannel

        return MpiChannel(job.mpi, job.world, busy=busy)
    from .direct import find_direct
    from .meeting import connect_all, own_address

    address = own_address(interface, alone=len(topology.hosts) == 1)
    if kind in ("adaptive", "ucx"):
        from .adaptive import Adaptive

        processes = find_direct(job.rank, job.gather) if direct and kind == "adaptive" else {}
        local = all(len(each) == job.size - 1 for each in job.gather(processes))
        links = connect_all(job.rank, job.size, job.gather, address, local=local)
        fabric = _find_fabric(job, topology, kind, interface)
        return Adaptive(job.rank, job.size, links, processes, fabric=fabric, busy=busy)
    if kind == "grpc":
        from .grpc_stream import GrpcStream

        return GrpcStream(job.rank, job.size, job.gather, address, busy=busy)
    raise UserError(f"--channel {kind}: choose one of {', '.join(KINDS)}")


def _find_fabric(job: MpiJob, topology: Topology, kind: str, interface: str | None) -> Ucx | None:
    """UCX to all ranks ("ucx"), or to those of other hosts, if all have adapters that only UCX
    makes full use of; else None."""
    from .meeting import own_interface
    from .ucx import Ucx, has_fabric, is_here

    able = has_fabric() and (kind == "ucx" or is_here())
    fabric = all(job.gather(able))
    if kind != "ucx" and (len(topology.hosts) == 1 or not fabric):
        return None
    others = [each for each in topology.ranks if each.rank != job.rank]
    near = {each.rank for each in others if each.host == topology.own.host}
    ranks = [each.rank for each in others if kind == "ucx" or each.rank not in near]
    if job.rank == 0:
        what = "all messages" if kind == "ucx" else "messages between hosts"
        logger.info("UCX carries %s%s", what, "" if fabric else ", over TCP or shared memory")
    # Over TCP, UCX writes what strangers send to where they say: only who asks for it gets that.
    alone = len(topology.hosts) == 1
    settings = {"TLS": "sm" if alone else "ib,sm" if fabric else "tcp,sm"}
    if not alone and not fabric:
        settings["NET_DEVICES"] = own_interface(interface, alone=False)
    return Ucx(job.rank, ranks, job.gather, near=near, settings=settings)
