"""Owns the adaptive channel: each message goes by the way that suits its size.

After the ideas of AR-gRPC (Biswas et al., 2018). Small messages leave at once, and all that wait
for a peer leave in one call of the system (coalescing); where nobody receives yet, they are kept.
A few KB are copied behind their header, which is quicker than to tell the system of each array.
Large ones leave when the receiver has said that its memory is ready, which it does as soon as it
begins to receive, so that mostly nobody waits for it; they go in chunks, between which small
messages overtake; on one host they go straight from array to array, where the system permits it:
into registered memory (`buffer`) by a plain copy, into other memory by the system's.
Nothing else is copied on the way from an array to the system, or back.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Sequence

import numpy as np

from .channel import Channel, Request
from .direct import Registered
from .peer import Peer
from .ucx import Ucx, UcxPeer

_NAP = 5e-3
"""Seconds after which who waits looks at what another thread may have received."""


class Adaptive(Channel):
    """Messages over connected sockets, one for each other rank (`links.connect_all`).

    direct: the processes whose memory can be written to, by rank (`direct.find_direct`). fabric:
    carries the messages to and from its peers; their sockets only tell who has ended.
    """

    spins = 5  # what arrives ends a sleep

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
        self._places = {link.fileno(): self._peers[other] for other, link in links.items()}
        self._arrivals = select.epoll()
        for place in self._places:
            self._arrivals.register(place, select.EPOLLIN)
        if fabric is not None:
            self._arrivals.register(fabric.place, select.EPOLLIN)
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
        memory = self._registered.allocate(count * np.dtype(dtype).itemsize)
        if self._fabric is not None and memory.size:
            with self._lock:
                self._fabric.register(memory)
        return memory.view(dtype)

    def _look(self, seconds: float) -> None:
        """Send what can be sent, and receive what has arrived, or arrives within so long."""
        places: list[int] = []
        if self._fabric is not None:
            with self._lock:
                self._fabric.progress()
                if seconds and not self._fabric.may_sleep():
                    seconds = 0
        if self._leaving:
            with self._lock:
                self._flush()
                if seconds and self._leaving:
                    places = [at for at, peer in self._places.items() if peer in self._leaving]
        for place in places:
            self._arrivals.modify(place, select.EPOLLIN | select.EPOLLOUT)
        found = self._arrivals.poll(seconds)
        for place in places:
            self._arrivals.modify(place, select.EPOLLIN)
        if not found:
            return
        with self._lock:
            for place, _ in found:
                if self._fabric is not None and place == self._fabric.place:
                    self._fabric.progress()
                    continue
                peer = self._places[place]
                if not peer.open:
                    continue  # another thread has seen it, too
                try:
                    peer.progress()
                finally:
                    if not peer.open:
                        self._arrivals.unregister(place)
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
