"""A host that no longer answers ends the job; a rank that left does not. `make soak` cuts links."""

from __future__ import annotations

import errno
import logging
import queue
import socket
from collections.abc import Callable
from typing import Any

import pytest

from osucaffe.comm.job import handshake, links
from osucaffe.comm.job.job import Job
from osucaffe.comm.job.topology import Location, Topology
from osucaffe.errors import UserError

from ..threads import on_ranks

HOSTS = [0, 0, 2]
"""Of three ranks."""


class Told(Job):
    """A job that gathers by this, and keeps what it is ended with."""

    def __init__(self, rank: int, gather: Callable[[Any], list[Any]]) -> None:
        self.rank, self._gather = rank, gather
        self.messages: list[str] = []

    def gather(self, value: Any) -> list[Any]:
        return self._gather(value)

    def abort(self, message: str, code: int = 4) -> None:
        self.messages.append(message)


def watch(rank: int, gather: Callable[[Any], list[Any]]) -> None:
    ranks = [Location(each, host, f"h{host}", 1) for each, host in enumerate(HOSTS)]
    links.watch(Told(rank, gather), Topology(ranks[rank], tuple(ranks)), "lo")


def test_one_rank_of_each_host_watches_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: queue.Queue[tuple[Job, dict[socket.socket, str]]] = queue.Queue()
    monkeypatch.setattr(links, "_run", lambda job, hosts: begun.put((job, hosts)))
    monkeypatch.setattr(links, "_PATIENCE", 60)
    assert on_ranks(3, watch) == [None] * 3
    found = {job.rank: hosts for job, hosts in (begun.get(timeout=60) for _ in range(2))}
    assert [list(found[rank].values()) for rank in (0, 2)] == [
        ["rank 2 on h2"],
        ["ranks 0, 1 on h0"],
    ]
    for hosts in found.values():
        [link] = hosts
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        fields = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        idle, every, count = (link.getsockopt(socket.IPPROTO_TCP, field) for field in fields)
        assert idle + every * count == links.LONGEST
        link.close()


def test_hosts_that_cannot_connect_train_unwatched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(rank: int, size: int, gather: Any, address: str, **settings: Any) -> None:
        gather(None), gather(None)
        raise UserError("a firewall")

    monkeypatch.setattr(handshake, "connect_all", refuse)
    monkeypatch.setattr(links, "_run", lambda job, hosts: pytest.fail("nothing to watch"))
    with caplog.at_level(logging.INFO, "osucaffe"):
        assert on_ranks(3, watch) == [None] * 3
    assert "are not monitored (--interface names them): a firewall" in caplog.text


class Ended:
    """A connection of which recv gives or raises this."""

    def __init__(self, what: bytes | OSError) -> None:
        self.what, self.closed = what, False

    def recv(self, count: int) -> bytes:
        if isinstance(self.what, OSError):
            raise self.what
        return self.what

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETDOWN])
def test_a_host_that_does_not_answer_ends_the_job(number: int) -> None:
    job, link = Told(0, list), Ended(OSError(number, "told"))
    links.end(job, link, "rank 2 on h2")  # type: ignore[arg-type]
    [message] = job.messages
    assert message.startswith("Waiting for rank 2 on h2: the host has not answered for 8 s")
    assert link.closed


@pytest.mark.parametrize(
    "what", [b"", ConnectionResetError(errno.ECONNRESET, ""), BlockingIOError()]
)
def test_a_rank_that_leaves_does_not(what: bytes | OSError) -> None:
    job, link = Told(0, list), Ended(what)
    links.end(job, link, "rank 2 on h2")  # type: ignore[arg-type]
    assert not job.messages
    assert link.closed


def test_the_watch_ends_with_its_connections() -> None:
    own, other = socket.socketpair()
    other.close()
    links._run(Told(0, list), {own: "rank 1 on h1"})
    assert own.fileno() == -1
