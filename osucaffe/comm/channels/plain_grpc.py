"""Owns calls by plain gRPC, what the adaptive channel is measured beside: a message is bytes.

gRPC's Python takes and gives `bytes`: a payload of several arrays is joined by one copy, and what
comes back is looked at where it lies.
"""

from __future__ import annotations

import hmac
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...errors import UserError

OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.max_frame_size", 16 << 20),
    ("grpc.http2.lookahead_bytes", 16 << 20),
    ("grpc.so_reuseport", 0),
]
ECHO, TAKE = "/osucaffe.Payload/Echo", "/osucaffe.Payload/Take"
"""Calls that give the payload back, or a byte."""


def import_grpc() -> Any:
    """The package. UserError where it is missing."""
    try:
        import grpc
    except ImportError as error:
        raise UserError('gRPC is not installed: pip install "osucaffe[grpc]"') from error
    return grpc


def is_of_job(context: Any, token: str) -> dict[str, Any]:
    """What came along with a call; calls that bring another token are refused."""
    told = dict(context.invocation_metadata())
    if not hmac.compare_digest(str(told.get("token", "")), token):
        context.abort(import_grpc().StatusCode.UNAUTHENTICATED, "this is not of the job")
    return told


class GrpcServer:
    """Answers calls at an address that it chooses a port of; `place` is host and port.

    token: what a call must bring.
    """

    def __init__(self, address: str, token: str) -> None:
        grpc = import_grpc()
        self._token = token

        def checked(work: Any) -> Any:
            def handle(payload: bytes, context: Any) -> bytes:
                is_of_job(context, token)
                result: bytes = work(payload)
                return result

            return grpc.unary_unary_rpc_method_handler(handle)

        handlers = {ECHO: checked(lambda payload: payload), TAKE: checked(lambda payload: b"\0")}

        class Calls(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
            def service(self, details: Any) -> Any:
                return handlers.get(details.method)

        self._server = grpc.server(ThreadPoolExecutor(4), [Calls()], options=OPTIONS)
        port = self._server.add_insecure_port(f"{address}:0")
        self.place = f"{address}:{port}"
        self._server.start()

    def close(self) -> None:
        """Answer no more."""
        self._server.stop(0).wait()


class GrpcClient:
    """Calls one server."""

    def __init__(self, place: str, token: str) -> None:
        grpc = import_grpc()
        self._link = grpc.insecure_channel(place, options=OPTIONS)
        self._token = (("token", token),)
        self._calls = {name: self._link.unary_unary(name) for name in (ECHO, TAKE)}

    def call(self, name: str, payload: bytes) -> bytes:
        """Return with the answer."""
        answer: bytes = self._calls[name](payload, metadata=self._token)
        return answer

    def begin(self, name: str, payload: bytes) -> Any:
        """A call under way; `result` waits for its answer."""
        return self._calls[name].future(payload, metadata=self._token)

    def close(self) -> None:
        """Call no more."""
        self._link.close()
