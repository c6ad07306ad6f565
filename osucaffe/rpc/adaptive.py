"""The adaptive channel: the size of a message decides how it is transferred.

After the ideas of AR-gRPC (Biswas et al., 2018). Small messages are sent eagerly, and all
that are queued for a peer go out in one system call (coalescing); the receiver buffers them until
a receive is posted. A few KB are copied next to their header, which is quicker than one iovec entry
for each array. Large ones are sent once the receiver has announced its memory (rendezvous), which
it does as soon as a receive is posted, so that senders rarely wait; they go in chunks, between
which small messages may overtake; on one host they go straight from array to array, where the
system permits it: into registered memory (`buffer`) by a plain copy, into other memory by the
kernel's cross-memory attach. There are no other copies between an array and the system.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Sequence

import numpy as np

from ..comm.channels.channel import Channel, Request
from .direct import Registered
from .peer import Peer
from .ucx import Ucx, UcxPeer

_NAP = 5e-3
"""Seconds after which a waiting thread checks what another thread may have received."""


class Adaptive(Channel):
    """Messages over connected sockets, one for each other rank (`handshake.connect_all`).

    direct: the processes whose memory can be written to, by rank (`direct.find_direct`). fabric:
    carries the messages of its peers; their sockets only show who has ended.
    """

    spins = 5  # arriving data ends a sleep

    def __init__(
        self,
        rank: int,
        size: int,
        links: dict[int, socket.socket],
        direct: dict[int, int] | None = None,
        *,
        fabric: Ucx | None = None,
        busy: bool = False,
    ) -> None:
        super().__init__(rank, size, busy=busy)
        self._links = links
        self._fabric = fabric
        processes = direct or {}
        self._registered = Registered()
        self._peers: dict[int, Peer | UcxPeer] = {
            other: Peer(other, link, processes.get(other), self._registered)
            for other, link in links.items()
        }
        if fabric is not None:
            self._peers.update(fabric.peers)
        self._peer_of = {link.fileno(): self._peers[other] for other, link in links.items()}
        self._arrivals = select.epoll()
        for descriptor in self._peer_of:
            self._arrivals.register(descriptor, select.EPOLLIN)
        if fabric is not None:
            self._arrivals.register(fabric.event_fd, select.EPOLLIN)
        self._leaving: set[Peer | UcxPeer] = set()
        """To whom there is more to send than was sent."""
        self._lock = threading.RLock()

    def send(self, arrays: Sequence[np.ndarray], to: int, tag: int) -> Request:
        request, peer = Request(arrays, tag), self._peers[to]
        with self._lock:
            peer.send(request)
            self._leaving.add(peer)
        return request

    def receive(self, arrays: Sequence[np.ndarray], source: int, tag: int) -> Request:
        request, peer = Request(arrays, tag), self._peers[source]
        with self._lock:
            peer.receive(request)
            self._leaving.add(peer)
        return request

    def complete(self, requests: Sequence[Request]) -> list[int]:
        self._look(0)
        return [index for index, request in enumerate(requests) if request.done]

    def wait(self, requests: Sequence[Request]) -> None:
        self._look(0)
        looks, left = 1, requests
        while left := [request for request in left if not request.done]:
            os.sched_yield()
            self._look(0 if self.busy or looks < self.spins else _NAP)
            looks += 1

    def idle(self, seconds: float) -> None:
        self._look(seconds)

    def buffer(self, count: int, dtype: str = "float32") -> np.ndarray:
        return self._registered.allocate(count * np.dtype(dtype).itemsize).view(dtype)

    def _look(self, seconds: float) -> None:
        """Send what can be sent, and receive what has arrived, or arrives within this time."""
        writable: list[int] = []
        if self._fabric is not None:
            with self._lock:
                self._fabric.progress()
                if seconds and not self._fabric.may_sleep():
                    seconds = 0
        if self._leaving:
            with self._lock:
                self._flush()
                if seconds and self._leaving:
                    writable = [at for at, peer in self._peer_of.items() if peer in self._leaving]
        for descriptor in writable:
            self._arrivals.modify(descriptor, select.EPOLLIN | select.EPOLLOUT)
        events = self._arrivals.poll(seconds)
        for descriptor in writable:
            self._arrivals.modify(descriptor, select.EPOLLIN)
        if not events:
            return
        with self._lock:
            for descriptor, _ in events:
                if self._fabric is not None and descriptor == self._fabric.event_fd:
                    self._fabric.progress()
                    continue
                peer = self._peer_of[descriptor]
                if not peer.open:
                    continue  # another thread has seen it, too
                try:
                    peer.progress()
                finally:
                    if not peer.open:
                        self._arrivals.unregister(descriptor)
                if peer.waits:
                    self._leaving.add(peer)
            self._flush()

    def _flush(self) -> None:
        if self._leaving:
            self._leaving = {peer for peer in self._leaving if peer.flush()}

    def close(self) -> None:
        self._arrivals.close()
        if self._fabric is not None:
            self._fabric.close()
        self._registered.close()
        for link in self._links.values():
            link.close()
