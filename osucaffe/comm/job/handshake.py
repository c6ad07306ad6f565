"""The handshake of a job's ranks, after which each pair has a connection.

Each rank listens on the job's interface only. Both ends of a connection prove that they know the
job's token, which rank 0 draws and MPI distributes, without sending it.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import UserError, listed

Gather = Callable[[Any], list[Any]]
"""Every rank's value, in the order of the ranks."""

_NONCE = 32
_PROOF = 32
_CREDENTIALS = struct.Struct("3i")  # process, user, group
_CALLERS = 64
"""Strangers who may be calling at once; of more, the oldest are given up."""
_PAUSE = 0.01
"""Seconds until something is tried again."""


def connect_all(
    rank: int,
    size: int,
    gather: Gather,
    address: str,
    *,
    local: bool = False,
    patience: float = 60.0,
) -> dict[int, socket.socket]:
    """A connected, non-blocking socket for each other rank. All ranks call it together.

    local: all are on one host, where UNIX sockets cost half as much as TCP. patience: seconds
    after which all must be connected, whoever else calls. UserError.
    """
    token = gather(secrets.token_bytes(32))[0]
    with _listen(address, size, local=local) as listener:
        addresses = gather(listener.getsockname())
        try:
            links = asyncio.run(_meet(rank, token, listener, addresses, patience))
        except OSError as error:
            raise UserError(f"rank {rank} has no connection to all others: {error}") from error
    if not local:
        for link in links.values():
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return links


def _listen(address: str, size: int, *, local: bool) -> socket.socket:
    if not local:
        return socket.create_server((address, 0), backlog=size + _CALLERS)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("")  # Linux chooses a name that is in no folder
    listener.listen(size + _CALLERS)
    return listener


async def _meet(
    rank: int, token: bytes, listener: socket.socket, addresses: list[Any], patience: float
) -> dict[int, socket.socket]:
    """Call the lower ranks, and answer the higher ones, all at once: a silent stranger holds up
    nobody. OSError, UserError."""
    loop = asyncio.get_running_loop()
    links: dict[int, asyncio.Future[socket.socket]] = {
        other: loop.create_task(_call(other, address, listener.family, token, rank))
        if other < rank
        else loop.create_future()
        for other, address in enumerate(addresses)
        if other != rank
    }
    listener.setblocking(False)
    answering = loop.create_task(_answer_all(rank, token, listener, links))
    try:
        async with asyncio.timeout(patience):
            await asyncio.gather(*map(asyncio.shield, links.values()))
        return {other: link.result() for other, link in links.items()}
    except BaseException as error:
        missing = [other for other, link in links.items() if not link.done()]
        for link in links.values():
            if link.done() and not link.exception():
                link.result().close()
        if isinstance(error, TimeoutError):
            told = f"after {patience:g} s, there is none to {listed(missing)}"
            raise TimeoutError(told) from None
        raise
    finally:
        answering.cancel()


async def _call(other: int, address: Any, family: int, token: bytes, rank: int) -> socket.socket:
    """A connection to another rank's listener."""
    while True:
        link = await _connect(address, family)
        try:
            await _prove(link, token, b"connects", rank)
            if await _believe(link, token, b"listens") != other:
                raise UserError(f"the listener for rank {other} is not part of this job")
            return link
        except ConnectionError:  # it had too many callers
            link.close()
            await asyncio.sleep(_PAUSE)
        except BaseException:
            link.close()
            raise


async def _connect(address: Any, family: int) -> socket.socket:
    link = socket.socket(family)
    link.setblocking(False)
    try:
        if family != socket.AF_UNIX:
            await asyncio.get_running_loop().sock_connect(link, address)
            return link
        while True:
            try:
                link.connect(address)
                return link
            except BlockingIOError:  # its queue is full
                await asyncio.sleep(_PAUSE)
    except BaseException:
        link.close()
        raise


async def _answer_all(
    rank: int,
    token: bytes,
    listener: socket.socket,
    links: Mapping[int, asyncio.Future[socket.socket]],
) -> None:
    """Answer who calls, each in a task, until this is cancelled; of too many, the oldest go."""
    loop = asyncio.get_running_loop()

    async def answer(link: socket.socket) -> None:
        expected = None
        try:
            who = await _believe(link, token, b"connects")
            if who is not None and who > rank and not links[who].done():
                await _prove(link, token, b"listens", rank)
                expected = links[who]
        except OSError:
            pass
        finally:
            if expected is None:
                link.close()  # a stranger
            else:
                expected.set_result(link)

    callers: deque[asyncio.Task[None]] = deque()
    while True:
        try:
            link, _ = await loop.sock_accept(listener)
        except OSError:  # this process has no descriptor left, or the caller has gone
            await asyncio.sleep(_PAUSE)
            continue
        if not _of_this_user(link):
            link.close()
            continue
        callers = deque(task for task in callers if not task.done())
        callers.append(loop.create_task(answer(link)))
        if len(callers) > len(links) + _CALLERS:
            callers.popleft().cancel()


def _of_this_user(link: socket.socket) -> bool:
    """Whether the process at the other end may be of this job: on a UNIX socket the kernel tells
    whose it is."""
    if link.family != socket.AF_UNIX:
        return True
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(told)[1] == os.geteuid())


async def _prove(link: socket.socket, token: bytes, role: bytes, rank: int) -> None:
    """Answer the other's nonce by what only who knows the token can compute. OSError."""
    nonce = await _read(link, _NONCE)
    who = rank.to_bytes(4, "little")
    proof = hmac.digest(token, role + nonce + who, "sha256")
    await asyncio.get_running_loop().sock_sendall(link, who + proof)


async def _believe(link: socket.socket, token: bytes, role: bytes) -> int | None:
    """The other's rank; None if it cannot prove that it is of this job. OSError."""
    nonce = secrets.token_bytes(_NONCE)
    await asyncio.get_running_loop().sock_sendall(link, nonce)
    answer = await _read(link, 4 + _PROOF)
    who, proof = answer[:4], answer[4:]
    if not hmac.compare_digest(proof, hmac.digest(token, role + nonce + who, "sha256")):
        return None
    return int.from_bytes(who, "little")


async def _read(link: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        part = await asyncio.get_running_loop().sock_recv(link, count - len(got))
        if not part:
            raise ConnectionError("the other side has closed the connection")
        got += part
    return got
