"""Owns the watch over the links between a job's hosts: one that is cut ends the job, soon.

MPI waits for as long as a message may still come, and `--comm_timeout` must be longer than any
computation of another rank. So one rank of each host keeps a connection to those of the others,
over which nothing is sent: the systems themselves ask one another whether they are there, whatever
the programs do.
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

logger = logging.getLogger("osucaffe")
LONGEST = 8
"""Seconds without an answer after which a host is given up."""
_EVERY = 2
_PATIENCE = 5.0
"""Seconds in which a connection must be there."""


def watch(job: Job, topology: Topology, interface: str | None = None) -> None:
    """Begin to watch; all ranks call it together. interface: what the connections go over (None:
    the first that is up). Hosts that cannot connect are not watched. UserError."""
    from .meeting import connect_all, own_interface

    leaders = [ranks[0].rank for ranks in topology.hosts]
    if len(leaders) == 1:
        return

    def gather(value: Any) -> list[Any]:
        found = job.gather(value)
        return [found[rank] for rank in leaders]

    if job.rank not in leaders:
        gather(None)  # those of `connect_all`
        gather(None)
        return
    _, address = own_interface(interface, alone=False)
    own = leaders.index(job.rank)
    try:
        links = connect_all(own, len(leaders), gather, address, patience=_PATIENCE)
    except UserError as error:
        logger.info("Links between hosts are not monitored (--interface names them): %s", error)
        return
    hosts = {}
    for other, link in links.items():
        _keep_alive(link)
        ranks = topology.hosts[other]
        numbers = listed(each.rank for each in ranks)
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
