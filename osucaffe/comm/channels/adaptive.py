"""Owns the adaptive channel: each message goes by the way that suits its size.

After the ideas of AR-gRPC (Biswas et al., 2018). Small messages leave at once, and all that wait
for a peer leave in one call of the system (coalescing); where nobody receives yet, they are kept.
Large ones leave when the receiver has said that its memory is ready, which it does as soon as it
begins to receive, so that mostly nobody waits for it; they go in chunks, between which small
messages overtake; on one host they go straight from array to array, where the system permits it.
Nothing is copied on the way from an array to the system, or back.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Sequence

import numpy as np

from .channel import Channel
from .peer import Peer, Request


class Adaptive(Channel):
    """Messages over connected sockets, one for each other rank (`meeting.connect_all`).

    direct: the processes whose memory can be written to, by rank (`direct.find_direct`).
    """

    spins = 5  # what arrives ends a sleep

    def __init__(
        self,
        rank: int,
        size: int,
        links: dict[int, socket.socket],
        direct: dict[int, int] | None = None,
        *,
        busy: bool = False,
    ) -> None:
        super().__init__(rank, size, busy=busy)
        self._links = links
        processes = direct or {}
        self._peers = {
            other: Peer(other, link, processes.get(other)) for other, link in links.items()
        }
        self._places = {link.fileno(): self._peers[other] for other, link in links.items()}
        self._arrivals = select.epoll()
        for place in self._places:
            self._arrivals.register(place, select.EPOLLIN)
        self._leaving: set[Peer] = set()
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
        with self._lock:
            self._flush()
            for place, _ in self._arrivals.poll(0):
                peer = self._places[place]
                try:
                    peer.progress()
                finally:
                    if not peer.open:
                        self._arrivals.unregister(place)
                self._leaving.add(peer)
            self._flush()
        return [index for index, request in enumerate(requests) if request.done]

    def _flush(self) -> None:
        if self._leaving:
            for peer in self._leaving:
                peer.flush()
            self._leaving = {peer for peer in self._leaving if peer.has_more}

    def idle(self, seconds: float) -> None:
        full = [place for place, peer in self._places.items() if peer in self._leaving]
        for place in full:
            self._arrivals.modify(place, select.EPOLLIN | select.EPOLLOUT)
        self._arrivals.poll(seconds)
        for place in full:
            self._arrivals.modify(place, select.EPOLLIN)

    def close(self) -> None:
        self._arrivals.close()
        for link in self._links.values():
            link.close()
