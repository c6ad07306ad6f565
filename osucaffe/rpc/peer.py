"""The messages in flight between two ranks of the adaptive channel: their socket protocol.

Each frame is a header and its payload: a small message; the addresses that the sender of a large
one is to write to; a chunk of a large one; the notice that one has been written there.
"""

from __future__ import annotations

import socket
import struct
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..comm.channels.channel import Request, Run, connection_lost, size_mismatch, views_of
from ..errors import UserError
from .direct import Mapped, Region, Registered, write

EAGER = 128 << 10
"""Bytes of the largest message that is sent eagerly."""
CHUNK = 512 << 10
"""Bytes of a large message that are sent before others may overtake it."""
COPIED = 8 << 10
"""Bytes of the largest message that is copied next to its header: quicker than an iovec entry for
each array."""
_STAGE = 64 << 10
_VIEWS = 256  # most arrays in one system call
_HEADER = struct.Struct("<IIQ")  # kind, tag, bytes that follow
_SMALL, _READY, _DATA, _DONE = range(4)


def _queues() -> defaultdict[int, deque[Any]]:
    return defaultdict(deque)


class Peer:
    """The messages in flight to and from one rank.

    process: its process id, if its memory can be written to. registered: this process's buffers.
    """

    def __init__(
        self, rank: int, link: socket.socket, process: int | None, registered: Registered
    ) -> None:
        self.rank, self._link, self._process = rank, link, process
        self._registered = registered
        self._mapped = None if process is None else Mapped(process)
        self.open = True
        self._out = Run((), 0)
        self._ends: deque[tuple[int, Request]] = (
            deque()
        )  # small ones, with the byte count at their end
        self._queued = self._left = 0  # bytes ever queued, and ever sent
        self._offered: defaultdict[int, deque[Request]] = _queues()  # not posted by the peer yet
        self._ready: defaultdict[int, deque[Any]] = _queues()  # the peer's receive buffers
        self._large: deque[Request] = deque()
        self._posted: tuple[defaultdict[int, deque[Request]], ...] = (_queues(), _queues())
        self._early: defaultdict[int, deque[np.ndarray]] = _queues()
        self._target: Request | None = None
        self._buffered: np.ndarray | None = None  # the buffer of a message without a posted receive
        self._kind = _SMALL
        self._expected = 0  # bytes of the message or chunk that is being received
        self._stage = memoryview(bytearray(_STAGE))
        self._have = 0

    # -- sending ---------------------------------------------------------------------------------

    def send(self, request: Request) -> None:
        if request.size <= COPIED:
            header = _HEADER.pack(_SMALL, request.tag, request.size)
            message = b"".join((header, *request.arrays))  # type: ignore[arg-type]
            self._queue([memoryview(message)], len(message))
            self._ends.append((self._queued, request))
        elif request.size <= EAGER:
            self._put(_SMALL, request.tag, request.in_parts())
            self._ends.append((self._queued, request))
        elif self._ready[request.tag]:
            self._start(request.in_parts(), self._ready[request.tag].popleft())
        else:
            self._offered[request.tag].append(request.in_parts())

    def _start(self, request: Request, message: np.ndarray) -> None:
        """Send a large message: to its regions in the peer's memory, or else over the socket."""
        if self._process is None or self._mapped is None:
            self._large.append(request)
            return
        regions = [Region(*row) for row in message.view(np.int64).reshape(-1, 4).tolist()]
        sources = list(request.views)
        try:
            if all(region.file >= 0 for region in regions):
                self._mapped.write(sources, regions)
            else:
                write(self._process, sources, [(at, count) for at, count, _, _ in regions])
        except OSError as error:
            raise self._gone(str(error)) from error
        request.done = True
        self._put(_DONE, request.tag, Run((), 0))

    def _put(self, kind: int, tag: int, run: Run) -> None:
        header = _HEADER.pack(kind, tag, run.nbytes)
        self._queue([memoryview(header), *run.views], len(header) + run.nbytes)

    def _queue(self, views: Sequence[memoryview], nbytes: int) -> None:
        self._out.views.extend(views)
        self._out.nbytes += nbytes
        self._queued += nbytes

    @property
    def waits(self) -> bool:
        """Whether anything is queued to send."""
        return bool(self._out.nbytes or self._large)

    def flush(self) -> bool:
        """Send what the socket takes now; whether there is more."""
        while self._out.nbytes or self._next_chunk():
            views = self._out.views
            try:
                sent = self._link.sendmsg(
                    views if len(views) <= _VIEWS else [views[i] for i in range(_VIEWS)]
                )
            except BlockingIOError:
                return True
            except OSError as error:
                raise self._gone(str(error)) from error
            self._out.drop(sent)
            self._left += sent
            while self._ends and self._ends[0][0] <= self._left:
                self._ends.popleft()[1].done = True
        return False

    def _next_chunk(self) -> bool:
        if not self._large:
            return False
        request = self._large[0]
        size = min(CHUNK, request.nbytes)
        self._put(_DATA, request.tag, Run(request.head(size), size))
        request.drop(size)
        if not request.nbytes:
            self._large.popleft()
            self._ends.append((self._queued, request))
        return True

    # -- receiving -------------------------------------------------------------------------------

    def receive(self, request: Request) -> None:
        large = request.size > EAGER
        early = self._early[request.tag]
        if not large and early:
            unexpected = early.popleft()
            self._check(request, unexpected.nbytes)
            request.take(unexpected.data)
            return
        self._posted[large][request.tag].append(request)
        if large:
            request.in_parts()
            regions = [] if self._process is None else self._registered.regions(request.views)
            message = views_of([np.array(regions, np.int64)])
            self._put(_READY, request.tag, Run(message, sum(map(len, message))))

    def progress(self) -> None:
        """Receive what has arrived."""
        while True:
            target, buffer, direct = self._target, self._stage[self._have :], 0
            views = []
            if target is not None and not self._have:
                views = target.head(self._expected)[:_VIEWS]
                direct = sum(map(len, views))
            try:
                if views:
                    got = self._link.recvmsg_into([*views, buffer])[0]
                else:
                    got = self._link.recv_into(buffer)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._gone(str(error)) from error
            if not got:
                self._end()
                return
            full = got == direct + len(buffer)
            if direct:
                assert target is not None
                placed = min(got, direct)
                target.drop(placed)
                self._took(placed)
                got -= placed
            self._have += got
            self._parse()
            if not full and self._target is None:
                return  # there was no more

    def _parse(self) -> None:
        """Parse what was received into the stage; an incomplete header stays there."""
        at, end = 0, self._have
        while at < end:
            if self._target is not None:
                consumed = self._target.fill(self._stage[at : min(end, at + self._expected)])
                at += consumed
                self._took(consumed)
                continue
            if end - at < _HEADER.size:
                break
            kind, tag, nbytes = _HEADER.unpack_from(self._stage, at)
            at += _HEADER.size
            if kind == _SMALL and nbytes <= end - at and self._posted[False][tag]:
                request = self._posted[False][tag].popleft()  # all of it is here, and awaited
                self._check(request, nbytes)
                request.take(self._stage[at : at + nbytes])
                at += nbytes
                continue
            self._begin(kind, tag, nbytes)
        self._have = end - at
        if at and self._have:
            self._stage[: self._have] = bytes(self._stage[at:end])

    def _begin(self, kind: int, tag: int, nbytes: int) -> None:
        if kind == _DONE:
            self._posted[True][tag].popleft().done = True
            return
        posted = self._posted[kind == _DATA][tag]
        if posted and kind != _READY:
            target = posted[0]
            if kind == _SMALL:
                self._check(target, nbytes)
                target.in_parts()
        elif kind in (_SMALL, _READY):
            buffered = np.empty(nbytes, np.uint8)
            target = Request([buffered], tag).in_parts()
            self._buffered = buffered
        else:
            raise self._gone(f"it sent {nbytes:,} unexpected bytes")
        self._target, self._expected, self._kind = target, nbytes, kind
        if not nbytes:
            self._took(0)

    def _took(self, count: int) -> None:
        """More bytes of the current message have been received."""
        self._expected -= count
        if self._expected:
            return
        target, self._target = self._target, None
        assert target is not None
        buffered, self._buffered = self._buffered, None
        if buffered is not None and self._kind == _READY:
            if self._offered[target.tag]:
                self._start(self._offered[target.tag].popleft(), buffered)
            else:
                self._ready[target.tag].append(buffered)
            return
        if buffered is not None:
            posted = self._posted[False][target.tag]
            if not posted:
                self._early[target.tag].append(buffered)
                return
            request = posted.popleft()  # it was begun meanwhile
            self._check(request, buffered.nbytes)
            request.take(buffered.data)
        elif not target.nbytes:
            target.done = True
            queue = self._posted[target.size > EAGER][target.tag]
            if queue and queue[0] is target:
                queue.popleft()

    def _check(self, request: Request, nbytes: int) -> None:
        if request.size != nbytes:
            raise self._gone(size_mismatch(nbytes, request.size))

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

    def _gone(self, why: str) -> UserError:
        return connection_lost(self.rank, why)
