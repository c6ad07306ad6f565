"""Owns how the ranks of a job get a connection for each pair of them, that nobody else gets.

Each listens on the job's interface only. Who connects proves that it knows the job's token, which
rank 0 draws and the job's own messages carry, without sending it; and so does who listens.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Callable
from typing import Any

from ...errors import UserError

_NONCE = 32
_PROOF = 32
_PATIENCE = 60.0

Gather = Callable[[Any], list[Any]]
"""Every rank's value, in the order of the ranks."""


def own_interface(wanted: str | None, *, alone: bool) -> tuple[str, str]:
    """The interface that ranks are reached by, and its IPv4 address: the one that is wanted; else
    the loopback where all ranks are on this host (alone); else the first other one that is up.
    UserError."""
    found = _addresses()
    if wanted is not None:
        if wanted not in found:
            raise UserError(
                f"--interface {wanted}: has no IPv4 address here; there are {', '.join(found)}"
            )
        return wanted, found[wanted]
    others = [each for each in found.items() if not each[1].startswith("127.")]
    return ("lo", "127.0.0.1") if alone or not others else others[0]


def _addresses() -> dict[str, str]:
    """The IPv4 address of each interface that has one."""
    import fcntl
    import struct

    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                asked = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            found[name] = socket.inet_ntoa(asked[20:24])
    return found


def connect_all(
    rank: int,
    size: int,
    gather: Gather,
    address: str,
    *,
    local: bool = False,
    patience: float = _PATIENCE,
) -> dict[int, socket.socket]:
    """A connected socket for each other rank. All ranks call it together. local: they are on one
    host, whose own sockets cost half the work of TCP's. patience: seconds in which each must be
    there. UserError."""
    token = gather(secrets.token_bytes(32))[0]
    with _listen(address, size, local=local) as listener:
        places = gather(listener.getsockname())
        found: dict[int, socket.socket] = {}
        try:
            for other in range(rank):
                link = _connect(places[other], patience, local=local)
                _prove(link, token, b"connects", rank)
                if _believe(link, token, b"listens") != other:
                    raise UserError(f"what listens for rank {other} is not of this job")
                found[other] = link
            listener.settimeout(patience)
            while len(found) < size - 1:
                link, _ = listener.accept()
                link.settimeout(patience)
                who = _believe(link, token, b"connects")
                if who is None or who in found:
                    link.close()  # a stranger
                    continue
                _prove(link, token, b"listens", rank)
                found[who] = link
        except OSError as error:
            raise UserError(f"rank {rank} has no connection to all others: {error}") from error
    for link in found.values():
        if not local:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setblocking(False)
    return found


def _listen(address: str, size: int, *, local: bool) -> socket.socket:
    if not local:
        return socket.create_server((address, 0), backlog=size)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # Linux chooses a name that is in no folder
    listener.listen(size)
    return listener


def _connect(place: Any, patience: float, *, local: bool) -> socket.socket:
    if not local:
        return socket.create_connection(place, patience)
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(patience)
    link.connect(place)
    return link


def _prove(link: socket.socket, token: bytes, role: bytes, rank: int) -> None:
    """Answer the other's nonce by what only who knows the token can compute."""
    nonce = _read(link, _NONCE)
    who = rank.to_bytes(4, "little")
    link.sendall(who + hmac.digest(token, role + nonce + who, "sha256"))


def _believe(link: socket.socket, token: bytes, role: bytes) -> int | None:
    """The other's rank; None if it cannot prove that it is of this job."""
    nonce = secrets.token_bytes(_NONCE)
    try:
        link.sendall(nonce)
        answer = _read(link, 4 + _PROOF)
    except OSError:
        return None
    who, proof = answer[:4], answer[4:]
    if not hmac.compare_digest(proof, hmac.digest(token, role + nonce + who, "sha256")):
        return None
    return int.from_bytes(who, "little")


def _read(link: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        part = link.recv(count - len(got))
        if not part:
            raise ConnectionError("the other side has closed the connection")
        got += part
    return got
