"""The channel over plain gRPC: what parameter servers of other frameworks speak.

A stream of calls for each pair of ranks and direction, so that order is kept. gRPC's Python takes
and gives `bytes`: a message is copied once to become them, and once more where it arrives.
"""

from __future__ import annotations

import hmac
import queue
import secrets
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..comm.channels.channel import Channel, Request, connection_lost, size_mismatch, views_of
from ..comm.job.handshake import Gather
from ..errors import UserError

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.max_frame_size", 16 << 20),
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.so_reuseport", 0),
]
_METHOD = "/osucaffe.Messages/Stream"
_HEADER = struct.Struct("<I")  # the tag


def import_grpc() -> Any:
    """The package. UserError where it is missing."""
    try:
        import grpc
    except ImportError as error:
        raise UserError('gRPC is not installed: pip install "osucaffe[grpc]"') from error
    return grpc


def is_of_job(context: Any, token: str) -> dict[str, Any]:
    """What came along with a call; calls that bring another token are refused."""
    metadata = dict(context.invocation_metadata())
    if not hmac.compare_digest(str(metadata.get("token", "")), token):
        context.abort(import_grpc().StatusCode.UNAUTHENTICATED, "not a process of this job")
    return metadata


class GrpcStream(Channel):
    """Messages over streams of gRPC. All ranks make one together.

    address: what this rank listens on. UserError.
    """

    spins = 5  # what arrives ends a sleep

    def __init__(
        self, rank: int, size: int, gather: Gather, address: str, *, busy: bool = False
    ) -> None:
        super().__init__(rank, size, busy=busy)
        grpc = import_grpc()
        token = gather(secrets.token_hex(32))[0]
        self._lock = threading.Lock()
        self._arrival = threading.Event()
        self._posted: defaultdict[tuple[int, int], deque[Request]] = defaultdict(deque)
        self._early: defaultdict[tuple[int, int], deque[memoryview]] = defaultdict(deque)
        self._lost: dict[int, str] = {}
        self._server = grpc.server(ThreadPoolExecutor(size), options=OPTIONS)

        def take(messages: Iterator[bytes], context: Any) -> bytes:
            source = int(is_of_job(context, token)["rank"])
            try:
                for message in messages:
                    self._take(source, message)
                self._lose(source, "it has closed the connection")
            except Exception as error:  # the stream broke, or brought what was not awaited
                self._lose(source, str(error) or "its stream broke")
            return b""

        name, method = _METHOD[1:].split("/")
        handler = grpc.method_handlers_generic_handler(
            name, {method: grpc.stream_unary_rpc_method_handler(take)}
        )
        self._server.add_generic_rpc_handlers((handler,))
        port = self._server.add_insecure_port(f"{address}:0")
        self._server.start()
        metadata = (("token", token), ("rank", str(rank)))
        self._links, self._queues, self._streams = {}, {}, {}
        for other, target in enumerate(gather(f"{address}:{port}")):
            if other != rank:
                link = grpc.insecure_channel(target, options=OPTIONS)
                items: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
                stream = link.stream_unary(_METHOD).future(iter(items.get, None), metadata=metadata)
                self._links[other], self._queues[other] = link, items
                self._streams[other] = stream

    def send(self, arrays: Sequence[np.ndarray], to: int, tag: int) -> Request:
        self._queues[to].put(b"".join([_HEADER.pack(tag), *views_of(arrays)]))
        request = Request((), tag)
        request.done = True  # it is copied
        return request

    def receive(self, arrays: Sequence[np.ndarray], source: int, tag: int) -> Request:
        request = Request(arrays, tag)
        with self._lock:
            self._posted[source, tag].append(request)
            self._match(source, tag)
        return request

    def complete(self, requests: Sequence[Request]) -> list[int]:
        completed = [index for index, request in enumerate(requests) if request.done]
        if self._lost and len(completed) < len(requests):
            with self._lock:
                for (source, _), posted in self._posted.items():
                    if source in self._lost and any(request in requests for request in posted):
                        raise connection_lost(source, self._lost[source])
        return completed

    def idle(self, seconds: float) -> None:
        self._arrival.wait(seconds)
        self._arrival.clear()

    def _take(self, source: int, message: bytes) -> None:
        """A message has arrived, on a thread of gRPC's."""
        tag = _HEADER.unpack_from(message)[0]
        payload = memoryview(message)[_HEADER.size :]
        with self._lock:
            self._early[source, tag].append(payload)
            self._match(source, tag)
        self._arrival.set()

    def _match(self, source: int, tag: int) -> None:
        """Fill the first posted receive with the first message, if both are here."""
        posted, early = self._posted[source, tag], self._early[source, tag]
        if posted and early:
            if posted[0].size != len(early[0]):
                self._lost[source] = size_mismatch(len(early[0]), posted[0].size)
                return
            request = posted.popleft().in_parts()
            request.fill(early.popleft())
            request.done = True

    def _lose(self, source: int, why: str) -> None:
        self._lost.setdefault(source, why)
        self._arrival.set()

    def close(self) -> None:
        for items in self._queues.values():
            items.put(None)
        for stream in self._streams.values():
            stream.exception(60)  # the other side has taken all
        for link in self._links.values():
            link.close()
        self._server.stop(60).wait()
