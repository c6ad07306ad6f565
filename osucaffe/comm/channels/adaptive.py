"""Owns the adaptive channel: each message goes by the way that suits its size.

After the ideas of AR-gRPC (Biswas et al., 2018). Small messages leave at once, and all that wait
for a peer leave in one call of the system (coalescing); where nobody receives yet, they are kept.
Large ones leave when the receiver has said that its memory is ready, which it does as soon as it
begins to receive, so that mostly nobody waits for it; they go in chunks, between which small
messages overtake. Nothing is copied on the way from an array to the system, or back.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import UserError
from .channel import Channel
from .runs import Run

EAGER = 32 << 10
"""Bytes of the largest message that is not waited for."""
CHUNK = 512 << 10
"""Bytes of a large message that leave without letting others by."""
_STAGE = 64 << 10
_VIEWS = 256  # arrays that one call of the system takes at most
_HEADER = struct.Struct("<IIQ")  # kind, tag, bytes that follow
_SMALL, _READY, _DATA = range(3)


class Request:
    """A message under way."""

    __slots__ = ("done", "nbytes", "run", "tag")

    def __init__(self, arrays: Sequence[np.ndarray], tag: int) -> None:
        self.run = Run(arrays)
        self.nbytes = self.run.nbytes
        self.tag = tag
        self.done = False


def _queues() -> defaultdict[int, deque[Any]]:
    return defaultdict(deque)


class _Peer:
    """What is under way to and from one rank."""

    def __init__(self, rank: int, link: socket.socket) -> None:
        self.rank, self._link = rank, link
        self.open = True
        self._out = Run(())
        self._ends: deque[tuple[int, Request]] = deque()  # small ones, with where in all they end
        self._queued = self._left = 0  # bytes ever queued, and ever sent
        self._offered: defaultdict[int, deque[Request]] = _queues()  # nobody is ready yet
        self._wanted: defaultdict[int, int] = defaultdict(int)  # how many it is ready for
        self._large: deque[Request] = deque()
        self._posted: tuple[defaultdict[int, deque[Request]], ...] = (_queues(), _queues())
        self._early: defaultdict[int, deque[np.ndarray]] = _queues()
        self._target: Request | None = None
        self._kept: np.ndarray | None = None  # what the target fills where nobody receives yet
        self._expected = 0  # bytes of the message or chunk that is being received
        self._stage = memoryview(bytearray(_STAGE))
        self._have = 0

    # -- sending ---------------------------------------------------------------------------------

    def send(self, request: Request) -> None:
        if request.nbytes <= EAGER:
            self._put(_SMALL, request.tag, request.nbytes, request.run)
            self._ends.append((self._queued, request))
        elif self._wanted[request.tag]:
            self._wanted[request.tag] -= 1
            self._large.append(request)
        else:
            self._offered[request.tag].append(request)

    def _put(self, kind: int, tag: int, nbytes: int, run: Run | None = None) -> None:
        header = memoryview(_HEADER.pack(kind, tag, nbytes))
        self._out.views.append(header)
        count = len(header)
        if run is not None:
            self._out.views.extend(run.views)
            count += run.nbytes
        self._out.nbytes += count
        self._queued += count

    def flush(self) -> None:
        """Send what the system takes now."""
        while True:
            if not self._out.nbytes and not self._next_chunk():
                return
            views = self._out.views
            given = list(views) if len(views) <= _VIEWS else [views[i] for i in range(_VIEWS)]
            try:
                sent = self._link.sendmsg(given)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._gone(str(error)) from error
            self._out.drop(sent)
            self._left += sent
            while self._ends and self._ends[0][0] <= self._left:
                self._ends.popleft()[1].done = True

    def _next_chunk(self) -> bool:
        if not self._large:
            return False
        request = self._large[0]
        run, size = request.run, min(CHUNK, request.run.nbytes)
        chunk = Run(())
        chunk.views.extend(run.head(size))
        chunk.nbytes = size
        self._put(_DATA, request.tag, size, chunk)
        run.drop(size)
        if not run.nbytes:
            self._large.popleft()
            self._ends.append((self._queued, request))
        return True

    # -- receiving -------------------------------------------------------------------------------

    def receive(self, request: Request) -> None:
        large = request.nbytes > EAGER
        early = self._early[request.tag]
        if not large and early:
            found = early.popleft()
            self._check(request, found.nbytes)
            request.run.fill(found.data)
            request.done = True
            return
        self._posted[large][request.tag].append(request)
        if large:
            self._put(_READY, request.tag, request.nbytes)

    def progress(self) -> None:
        """Receive what has arrived."""
        while True:
            views = []
            if self._target is not None and not self._have:
                views = self._target.run.head(self._expected)[:_VIEWS]
            direct = sum(map(len, views))
            room = self._stage[self._have :]
            try:
                got = self._link.recvmsg_into([*views, room])[0]
            except BlockingIOError:
                return
            except OSError as error:
                raise self._gone(str(error)) from error
            if not got:
                self._end()
                return
            full = got == direct + len(room)
            if direct:
                assert self._target is not None
                taken = min(got, direct)
                self._target.run.drop(taken)
                self._took(taken)
                got -= taken
            self._have += got
            self._parse()
            if not full and self._target is None:
                return  # there was no more

    def _parse(self) -> None:
        """Use what lies in the stage; the beginning of a header stays there."""
        at, end = 0, self._have
        while at < end:
            if self._target is not None:
                taken = self._target.run.fill(self._stage[at : min(end, at + self._expected)])
                at += taken
                self._took(taken)
                continue
            if end - at < _HEADER.size:
                break
            kind, tag, nbytes = _HEADER.unpack_from(self._stage, at)
            at += _HEADER.size
            self._begin(kind, tag, nbytes)
        self._have = end - at
        if at and self._have:
            self._stage[: self._have] = bytes(self._stage[at:end])

    def _begin(self, kind: int, tag: int, nbytes: int) -> None:
        if kind == _READY:
            if self._offered[tag]:
                self._large.append(self._offered[tag].popleft())
            else:
                self._wanted[tag] += 1
            return
        posted = self._posted[kind == _DATA][tag]
        if posted:
            target = posted[0]
            if kind == _SMALL:
                self._check(target, nbytes)
        elif kind == _SMALL:
            kept = np.empty(nbytes, np.uint8)
            target = Request([kept], tag)
            self._kept = kept
        else:
            raise self._gone(f"it sent {nbytes:,} bytes that nobody waits for")
        self._target, self._expected = target, nbytes
        if not nbytes:
            self._took(0)

    def _took(self, count: int) -> None:
        """So many bytes of the message at hand have been received."""
        self._expected -= count
        if self._expected:
            return
        target, self._target = self._target, None
        assert target is not None
        kept, self._kept = self._kept, None
        if kept is not None:
            posted = self._posted[False][target.tag]
            if not posted:
                self._early[target.tag].append(kept)
                return
            target = posted[0]  # it was begun meanwhile
            self._check(target, kept.nbytes)
            target.run.fill(kept.data)
        if not target.run.nbytes:
            target.done = True
            queue = self._posted[target.nbytes > EAGER][target.tag]
            if queue and queue[0] is target:
                queue.popleft()

    def _check(self, request: Request, nbytes: int) -> None:
        if request.nbytes != nbytes:
            raise self._gone(f"it sent {nbytes:,} bytes where {request.nbytes:,} were awaited")

    def _end(self) -> None:
        """The peer has closed the connection, as it does when it is done."""
        self.open = False
        under_way = [self._offered, *self._posted]
        if (
            self._target
            or self._large
            or self._out.nbytes
            or any(queue for queues in under_way for queue in queues.values())
        ):
            raise self._gone("it has closed the connection")

    @property
    def has_more(self) -> bool:
        """Whether the system has not yet taken all that could leave."""
        return bool(self._out.nbytes or self._large)

    def _gone(self, why: str) -> UserError:
        return UserError(f"the connection to rank {self.rank} is lost: {why}")


class Adaptive(Channel):
    """Messages over connected sockets, one for each other rank (`meeting.connect_all`)."""

    def __init__(
        self, rank: int, size: int, links: dict[int, socket.socket], *, busy: bool = False
    ) -> None:
        super().__init__(rank, size, busy=busy)
        self._links = links
        self._peers = {other: _Peer(other, link) for other, link in links.items()}
        self._lock = threading.RLock()

    def send(self, arrays: Sequence[np.ndarray], to: int, tag: int) -> Request:
        request = Request(arrays, tag)
        with self._lock:
            self._peers[to].send(request)
        return request

    def receive(self, arrays: Sequence[np.ndarray], source: int, tag: int) -> Request:
        request = Request(arrays, tag)
        with self._lock:
            self._peers[source].receive(request)
        return request

    def complete(self, requests: Sequence[Request]) -> list[int]:
        with self._lock:
            for peer in self._peers.values():
                if peer.open:
                    peer.flush()
                    peer.progress()
                    peer.flush()
        return [index for index, request in enumerate(requests) if request.done]

    def idle(self, seconds: float) -> None:
        waiting = select.poll()
        for other, peer in self._peers.items():
            if peer.open:
                events = select.POLLIN | (select.POLLOUT if peer.has_more else 0)
                waiting.register(self._links[other], events)
        waiting.poll(1e3 * seconds)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
