"""Messages by UCX: over InfiniBand and its like, whose adapters read and write arrays
themselves, or over whatever else UCX finds (https://openucx.org).

UCX matches a message to its receive by 64 bits: a secret number of the job, the sender, and the
tag.
"""

from __future__ import annotations

import ctypes
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from ctypes import byref, c_int, c_size_t, c_void_p
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ..comm.channels.channel import Request, connection_lost, size_mismatch
from ..comm.job.handshake import Gather
from ..errors import UserError
from . import ucp
from .peer import COPIED

_TAG_BITS, _RANK_BITS = 16, 16
_FULL_MASK = (1 << 64) - 1
_CLOSING = 5.0
"""Seconds within which sends must complete at the end."""
_LAST = 2.0
"""Seconds within which messages of a rank that has ended still arrive."""


class UcxPeer:
    """A rank reached over UCX; its socket only shows when it has ended."""

    waits = False
    """Whether its socket has anything to send."""

    def __init__(self, rank: int, worker: Ucx, end: int) -> None:
        """end: UCX's endpoint."""
        self.rank, self.end, self.open = rank, end, True
        self._worker = worker

    def send(self, request: Request) -> None:
        self._worker.send(request, self)

    def receive(self, request: Request) -> None:
        self._worker.receive(request, self)

    def progress(self) -> None:
        """Its socket can be read: it has closed it."""
        self.open = False
        self._worker.has_ended(self)

    def flush(self) -> bool:
        """The worker sends all."""
        return False


class _UnderWay(NamedTuple):
    """held: what C reads or writes until then; joined: the buffer that arrays are unpacked from."""

    request: Request
    peer: UcxPeer
    held: Any = None
    joined: np.ndarray | None = None

    def done(self) -> None:
        """It has been received, or sent, completely."""
        if self.joined is not None:
            self.request.take(self.joined.data)
        self.request.done = True


class Ucx:
    """A worker of UCX's; `peers`: some other ranks, by rank. All ranks make one together.

    near: those of this host; UCX's shared memory does not tell who has ended. settings: of UCX.
    Not for two threads at once. UserError.
    """

    def __init__(
        self,
        rank: int,
        ranks: Iterable[int],
        gather: Gather,
        *,
        near: Collection[int] = (),
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._ucx = ucp.library()
        self._context, self._worker = ucp.make_context(settings)
        (nonce, *_), addresses = zip(
            *gather((secrets.randbits(64 - _TAG_BITS - _RANK_BITS), self._address())), strict=True
        )
        self._secret = nonce << _TAG_BITS + _RANK_BITS
        self._rank = rank
        self.peers = {
            other: UcxPeer(other, self, self._connect(addresses[other], other in near))
            for other in ranks
        }
        self._ended: dict[UcxPeer, float] = {}
        """Those that have ended, and when that was seen."""
        self._under_way: dict[int, _UnderWay] = {}
        self._number = 0
        self._problem: UserError | None = None
        self._closed = False
        # What C calls must live as long as this.
        self._sent, self._received = ucp.SENT(self._end), ucp.RECEIVED(self._end_receive)
        common = ucp.CALLBACK | ucp.USER_DATA | ucp.DATATYPE
        sent, received = (
            ctypes.cast(function, c_void_p).value for function in (self._sent, self._received)
        )
        self._info = ucp.ReceiveInfo()
        self._sending = ucp.RequestParam(op_attr_mask=common, callback=sent)
        self._receiving = ucp.RequestParam(
            op_attr_mask=common | ucp.RECEIVE_INFO,
            callback=received,
            recv_info=ctypes.addressof(self._info),
        )
        descriptor = c_int()
        ucp.check(self._ucx.ucp_worker_get_efd(self._worker, byref(descriptor)), "wait")
        self.event_fd = descriptor.value
        """The file descriptor that becomes readable when something has arrived."""

    def _address(self) -> bytes:
        address, length = c_void_p(), c_size_t()
        got = self._ucx.ucp_worker_get_address(self._worker, byref(address), byref(length))
        ucp.check(got, "tell its address")
        try:
            return ctypes.string_at(address, length.value)
        finally:
            self._ucx.ucp_worker_release_address(self._worker, address)

    def _connect(self, address: bytes, near: bool) -> int:
        held, end = ctypes.create_string_buffer(address, len(address)), c_void_p()
        params = ucp.EndpointParams(
            field_mask=ucp.REMOTE_ADDRESS | ucp.ERROR_MODE,
            address=ctypes.addressof(held),
            err_mode=ucp.NO_ERRORS if near else ucp.PEER_ERRORS,
        )
        ucp.check(self._ucx.ucp_ep_create(self._worker, byref(params), byref(end)), "connect")
        return end.value or 0

    def send(self, request: Request, to: UcxPeer) -> None:
        """Start sending a message's arrays."""
        tag = self._secret | self._rank << _TAG_BITS | request.tag
        arrays = [array for array in request.arrays if array.size]
        if len(arrays) > 1 and request.size <= COPIED:
            arrays = [np.frombuffer(b"".join(arrays), np.uint8)]  # type: ignore[arg-type]
        where, count = self._prepare(self._sending, arrays, _UnderWay(request, to))
        pointer = self._ucx.ucp_tag_send_nbx(to.end, where, count, tag, byref(self._sending))
        self._begun(pointer)

    def receive(self, request: Request, source: UcxPeer) -> None:
        """Start receiving a message's arrays."""
        tag = self._secret | source.rank << _TAG_BITS | request.tag
        arrays, joined = [array for array in request.arrays if array.size], None
        if len(arrays) > 1 and request.size <= COPIED:
            joined = np.empty(request.size, np.uint8)
            arrays = [joined]
        awaited = _UnderWay(request, source, joined=joined)
        where, count = self._prepare(self._receiving, arrays, awaited)
        pointer = self._ucx.ucp_tag_recv_nbx(
            self._worker, where, count, tag, _FULL_MASK, byref(self._receiving)
        )
        if self._begun(pointer) and self._info.length != request.size:
            raise connection_lost(source.rank, size_mismatch(self._info.length, request.size))

    def _prepare(
        self, param: ucp.RequestParam, arrays: list[np.ndarray], begun: _UnderWay
    ) -> tuple[int, int]:
        """The address and size of a message, or its pieces."""
        self._number += 1
        param.user_data = self._number
        held: Any = arrays
        if len(arrays) <= 1:
            param.datatype = ucp.BYTES
            where, count = (_address_of(arrays[0]), begun.request.size) if arrays else (0, 0)
        else:
            held = (ucp.Piece * len(arrays))(*[ucp.Piece(_address_of(a), a.nbytes) for a in arrays])
            param.datatype = ucp.PIECES
            where, count = ctypes.addressof(held), len(arrays)
        self._under_way[self._number] = begun._replace(held=held)
        return where, count

    def _begun(self, pointer: int) -> bool:
        """Whether the operation has completed already."""
        status = ucp.status_of(pointer)
        if status is None:
            return False
        operation = self._under_way.pop(self._number)
        if status != ucp.OK:
            raise _failed(status, operation)
        operation.done()
        return True

    # -- called by UCX, which takes no exception ---------------------------------------------------

    def _end(self, pointer: int, status: int, number: int) -> None:
        operation = self._under_way.pop(number, None)
        self._ucx.ucp_request_free(pointer)
        if operation is None:
            return
        if status == ucp.OK:
            operation.done()
        elif self._problem is None:
            self._problem = _failed(status, operation)

    def _end_receive(self, pointer: int, status: int, info: Any, number: int) -> None:
        pending = self._under_way.get(number)
        if pending is not None and status == ucp.OK and info[0].length != pending.request.size:
            self._problem = connection_lost(
                pending.peer.rank, size_mismatch(info[0].length, pending.request.size)
            )
        self._end(pointer, status, number)

    # ----------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Do what can be done now. UserError where a connection is lost."""
        if self._closed:
            return
        while self._ucx.ucp_worker_progress(self._worker):
            pass
        if self._problem is not None:
            raise self._problem
        for peer, since in self._ended.items():
            if time.monotonic() > since + _LAST and self._awaits(peer):
                raise connection_lost(peer.rank, "it has closed the connection")

    def has_ended(self, peer: UcxPeer) -> None:
        """What is under way from there may still come; then it is lost."""
        self._ended[peer] = time.monotonic()

    def _awaits(self, peer: UcxPeer) -> bool:
        return any(operation.peer is peer for operation in self._under_way.values())

    def may_sleep(self) -> bool:
        """Whether there is nothing to do until `event_fd` is readable."""
        return bool(self._ucx.ucp_worker_arm(self._worker) == ucp.OK)

    def close(self) -> None:
        """Free everything, once all sends have completed."""
        if self._closed:
            return
        self._closed = True
        param = ucp.RequestParam()
        closing = [
            self._ucx.ucp_ep_close_nbx(peer.end, byref(param)) for peer in self.peers.values()
        ]
        closing = [pointer for pointer in closing if ucp.status_of(pointer) is None]
        until = time.monotonic() + _CLOSING
        while closing and time.monotonic() < until:
            self._ucx.ucp_worker_progress(self._worker)
            for pointer in closing[:]:
                if self._ucx.ucp_request_check_status(pointer) != ucp.IN_PROGRESS:
                    self._ucx.ucp_request_free(pointer)
                    closing.remove(pointer)
        if not closing:
            self._ucx.ucp_worker_destroy(self._worker)
            self._ucx.ucp_cleanup(self._context)


def has_fabric(devices: Path = Path("/sys/class/infiniband")) -> bool:
    """Whether this host has an adapter that InfiniBand's verbs drive, with a link that is up."""
    states = devices.glob("*/ports/*/state")
    return any("ACTIVE" in state.read_text() for state in states)


def is_available() -> bool:
    """Whether UCX is installed."""
    try:
        ucp.library()
    except UserError:
        return False
    return True


def _address_of(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _failed(status: int, under_way: _UnderWay) -> UserError:
    why = ucp.describe(status)
    if status == ucp.TRUNCATED:  # it does not tell the size
        why = f"it sent more than the {under_way.request.size:,} bytes that were expected"
    return connection_lost(under_way.peer.rank, why)
