"""The ranks' handshake: whoever else calls gets no connection, and holds up nobody."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from osucaffe.comm.job import handshake
from osucaffe.comm.job.handshake import connect_all
from osucaffe.errors import UserError

from ..threads import on_ranks

Gather = Callable[[Any], list[Any]]


def connect(
    meanwhile: Callable[[Any, socket.AddressFamily], object],
    *,
    size: int = 2,
    local: bool,
    patience: float = 60,
) -> list[Any]:
    """What `connect_all` gives each rank, closed by now. meanwhile: gets the address of rank 0,
    before any rank calls it, and the address family."""
    family = socket.AF_UNIX if local else socket.AF_INET

    def work(rank: int, gather: Gather) -> Any:
        def told(value: Any) -> list[Any]:
            found = gather(value)
            if rank == 1 and len(value) < 32:  # not the token, but where to connect
                meanwhile(found[0], family)
            return found

        return connect_all(rank, size, told, "127.0.0.1", local=local, patience=patience)

    found = on_ranks(size, work)
    for links in found:
        if isinstance(links, dict):
            for link in links.values():
                link.close()
    return found


def links_of(found: list[Any]) -> list[Any]:
    """To which ranks each has a link, in order; or its error."""
    return [sorted(links) if isinstance(links, dict) else links for links in found]


@pytest.fixture
def callers() -> Iterator[list[socket.socket]]:
    """Connections that are closed at the end."""
    with contextlib.ExitStack() as stack:
        made: list[socket.socket] = []
        yield made
        for each in made:
            stack.enter_context(each)


both = pytest.mark.parametrize("local", [False, True], ids=["tcp", "unix"])


@both
def test_all_ranks_get_connected(local: bool) -> None:
    found = connect(lambda *_: None, size=4, local=local)
    assert links_of(found) == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]


@both
def test_a_stranger_gets_no_connection(local: bool) -> None:
    """It knows where the ranks listen, but not their token."""

    def guess(address: Any, family: socket.AddressFamily) -> None:
        with socket.socket(family) as stranger:
            stranger.connect(address)
            stranger.recv(64)
            stranger.sendall((1).to_bytes(4, "little") + bytes(32))
            assert stranger.recv(1) == b""

    assert links_of(connect(guess, local=local)) == [[1], [0]]


@both
def test_silent_callers_hold_up_nobody(local: bool, callers: list[socket.socket]) -> None:
    def call(address: Any, family: socket.AddressFamily) -> None:
        for _ in range(3):
            callers.append(socket.socket(family))
            callers[-1].connect(address)

    assert links_of(connect(call, local=local, patience=10)) == [[1], [0]]


@both
def test_more_callers_than_are_kept_hold_up_nobody(
    local: bool, callers: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest are given up, so that descriptors last; a rank that was among them calls again."""
    monkeypatch.setattr(handshake, "_CALLERS", 2)

    def call(address: Any, family: socket.AddressFamily) -> None:
        for _ in range(20 if local else 4):  # TCP tries a full queue again after 1 s only
            callers.append(socket.socket(family))
            callers[-1].setblocking(False)
            with contextlib.suppress(BlockingIOError):  # also where the queue is full
                callers[-1].connect(address)

    assert links_of(connect(call, local=local, patience=10)) == [[1], [0]]


@both
def test_all_have_one_deadline(local: bool, callers: list[socket.socket]) -> None:
    """A rank that does not come is named after that time, though others call."""

    def work(rank: int, gather: Gather) -> Any:
        if rank == 1:
            gather(b"")
            address = gather("")[0]
            callers.append(socket.socket(socket.AF_UNIX if local else socket.AF_INET))
            callers[-1].connect(address)
            return None
        return connect_all(rank, 2, gather, "127.0.0.1", local=local, patience=0.2)

    error = on_ranks(2, work)[0]
    assert isinstance(error, UserError)
    assert str(error) == "rank 0 has no connection to all others: after 0.2 s, there is none to 1"


def test_another_user_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """UNIX sockets tell whose the process at the other end is."""
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    closed: list[bytes] = []

    def call(address: Any, family: socket.AddressFamily) -> None:
        with socket.socket(family) as stranger:
            stranger.connect(address)
            closed.append(stranger.recv(1))  # no nonce

    found = connect(call, local=True, patience=0.2)
    assert closed == [b""]
    assert all(isinstance(error, UserError) for error in found)
