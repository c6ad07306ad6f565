"""The interface that a job's ranks are reached by, and the monitoring of the links between hosts.

A broken link between hosts soon ends the job. MPI waits for as long as a message may still
come, and `--comm_timeout` must be longer than any computation of another rank. So one rank of each
host holds an idle connection to those of the others: TCP keep-alive probes show whether the other
host is there, whatever the programs do.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import UserError, listed

if TYPE_CHECKING:
    from .job import Job
    from .topology import Topology


def find_interface(requested: str | None, *, alone: bool) -> tuple[str, str]:
    """The interface that ranks are reached by, and its IPv4 address: the requested one; else
    the loopback where all ranks are on this host (alone); else the first other one that is up.
    UserError."""
    known = _addresses()
    if requested is not None:
        if requested not in known:
            raise UserError(
                f"--interface {requested}: has no IPv4 address here; there are {', '.join(known)}"
            )
        return requested, known[requested]
    others = [pair for pair in known.items() if not pair[1].startswith("127.")]
    return ("lo", "127.0.0.1") if alone or not others else others[0]


def _addresses() -> dict[str, str]:
    """The IPv4 address of each interface that has one."""
    import fcntl
    import struct

    addresses: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses


logger = logging.getLogger("osucaffe")
LONGEST = 8
"""Seconds without an answer after which a host is given up."""
_EVERY = 2
_PATIENCE = 5.0
"""Seconds in which the connections must be there."""


def watch(job: Job, topology: Topology, interface: str | None = None) -> None:
    """Begin to watch; all ranks call it together. interface: what the connections go over (None:
    the first that is up). Hosts that cannot connect are not watched. UserError."""

    leaders = [ranks[0].rank for ranks in topology.hosts]
    if len(leaders) == 1:
        return

    def gather(value: Any) -> list[Any]:
        values = job.gather(value)
        return [values[rank] for rank in leaders]

    if job.rank not in leaders:
        gather(None)  # those of `handshake.connect_all`
        gather(None)
        return
    from .handshake import connect_all

    _, address = find_interface(interface, alone=False)
    index = leaders.index(job.rank)
    try:
        links = connect_all(index, len(leaders), gather, address, patience=_PATIENCE)
    except UserError as error:
        logger.info("Links between hosts are not monitored (--interface names them): %s", error)
        return
    hosts = {}
    for other, link in links.items():
        _keep_alive(link)
        ranks = topology.hosts[other]
        numbers = listed(rank.rank for rank in ranks)
        name = f"rank{'s' * (len(ranks) > 1)} {numbers}"
        hosts[link] = f"{name} on {ranks[0].hostname}"
    threading.Thread(target=_run, args=(job, hosts), name="osucaffe-links", daemon=True).start()


def _keep_alive(link: socket.socket) -> None:
    """Let the systems ask each other every _EVERY seconds, and give up after LONGEST."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _EVERY)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _EVERY)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, LONGEST // _EVERY - 1)


def _run(job: Job, hosts: Mapping[socket.socket, str]) -> None:
    """Wait for the ends of the connections to these."""
    links = {link.fileno(): link for link in hosts}
    poll = select.poll()
    for number in links:
        poll.register(number, select.POLLIN)
    while links:
        for number, _ in poll.poll():
            poll.unregister(number)
            link = links.pop(number)
            end(job, link, hosts[link])


def end(job: Job, link: socket.socket, who: str) -> None:
    """What a connection means of which an end came: a host that does not answer ends the job; a
    rank that left does not, which is for its launcher to judge."""
    try:
        link.recv(1)
    except (ConnectionError, BlockingIOError):
        pass
    except OSError as error:
        job.abort(
            f"Waiting for {who}: the host has not answered for {LONGEST} s, its link is cut or it "
            f"is down ({error.strerror})"
        )
    link.close()
