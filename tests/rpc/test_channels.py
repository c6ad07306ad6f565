"""Channels: whatever is sent arrives, in order, however large, early or late it is; and only from
whom it should."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from osucaffe.comm.channels.channel import Channel
from osucaffe.comm.job.handshake import connect_all
from osucaffe.comm.job.links import find_interface
from osucaffe.errors import UserError
from osucaffe.rpc.adaptive import Adaptive
from osucaffe.rpc.direct import find_direct
from osucaffe.rpc.grpc_stream import GrpcStream
from osucaffe.rpc.peer import CHUNK, COPIED, EAGER
from osucaffe.rpc.ucx import Ucx, is_available
from tests.comm.threads import on_ranks


def make(kind: str) -> Iterator[tuple[Any, Any]]:
    """Two ends of a channel, closed in the end."""
    if kind == "grpc":
        pytest.importorskip("grpc")
    if kind.startswith("ucx") and not is_available():
        pytest.skip("there is no UCX")
    interface, _ = find_interface(None, alone=False)
    if kind == "ucx-tcp" and interface == "lo":
        pytest.skip("UCX does not use the loopback")

    def work(rank: int, gather: Callable[[Any], list[Any]]) -> Channel | None:
        if kind == "grpc":
            return GrpcStream(rank, 2, gather, "127.0.0.1")
        links = connect_all(rank, 2, gather, "127.0.0.1", local=kind == "direct")
        if kind == "ucx":
            near = Ucx(rank, [1 - rank], gather, near=[1 - rank], settings={"TLS": "sm"})
            return Adaptive(rank, 2, links, fabric=near)
        if kind == "ucx-tcp":
            over = {"TLS": "tcp", "NET_DEVICES": interface}
            return Adaptive(rank, 2, links, fabric=Ucx(rank, [1 - rank], gather, settings=over))
        processes = find_direct(rank, gather) if kind == "direct" else {}
        return None if kind == "direct" and not processes else Adaptive(rank, 2, links, processes)

    ends = on_ranks(2, work)
    if None in ends:
        pytest.skip("the system does not let processes write to one another")
    yield ends[0], ends[1]
    on_ranks(2, lambda rank, gather: ends[rank].close())


@pytest.fixture(
    params=["sockets", "direct", "ucx", pytest.param("ucx-tcp", marks=pytest.mark.long)]
)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Adaptive, Adaptive]]:
    yield from make(request.param)


@pytest.fixture(params=["sockets", "direct", "ucx", "ucx-tcp", "grpc"])
def any_pair(request: pytest.FixtureRequest) -> Iterator[tuple[Channel, Channel]]:
    yield from make(request.param)


def both(a: Channel, first: list[Any], b: Channel, second: list[Any]) -> None:
    """Wait for requests of both."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        a.complete(first)
        b.complete(second)
        if all(each.done for each in [*first, *second]):
            return
    raise AssertionError("they do not end")


def values(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


OTHER = "(8 bytes, expected 4|more than the 4 bytes that were expected)$"
SIZES = [0, 1, 1000, COPIED, COPIED + 1, EAGER, EAGER + 1, CHUNK, 3 * CHUNK + 5]


@pytest.mark.parametrize("late", [False, True], ids=["awaited", "unawaited"])
def test_all_sizes_arrive_in_order(late: bool, any_pair: tuple[Channel, Channel]) -> None:
    a, b = any_pair
    sent = [values(size, n) for n, size in enumerate([*SIZES, *SIZES[::-1]])]
    got = [np.zeros_like(each) for each in sent]
    sends = []
    if late:
        sends = [a.send([each], 1, 7) for each in sent]
        for _ in range(200):
            a.complete(sends)
            b.complete([])
    receives = [b.receive([each], 0, 7) for each in got]
    both(a, sends or [a.send([each], 1, 7) for each in sent], b, receives)
    np.testing.assert_equal(sent, got)


def test_several_arrays_are_one_message(any_pair: tuple[Channel, Channel]) -> None:
    a, b = any_pair
    for size in (10, EAGER):
        sent = [values(size, n) for n in range(300)]
        got = np.zeros((3, 100 * size), np.uint8)
        both(a, [a.send(sent, 1, 0)], b, [b.receive(list(got), 0, 0)])
        assert np.array_equal(np.concatenate(sent), got.ravel())


@pytest.mark.parametrize("registered", [1, 2, 3])
def test_what_is_registered_is_written_to_like_what_is_not(
    registered: int, pair: tuple[Adaptive, Adaptive]
) -> None:
    a, b = pair
    sizes = [10, 3 * EAGER, 5]
    memory = b.buffer(sum(sizes) + 7, "uint8")
    assert not memory.any()
    got, start = [], 7
    for n, size in enumerate(sizes):
        got.append(memory[start : start + size] if n < registered else np.zeros(size, np.uint8))
        start += size
    sent = [values(2 * EAGER, 1), values(sum(sizes) - 2 * EAGER, 2)]
    for _ in range(2):
        both(a, [a.send(sent, 1, 0)], b, [b.receive(got, 0, 0)])
        assert np.array_equal(np.concatenate(got), np.concatenate(sent))
        sent = sent[::-1]


def test_both_ways_and_many_tags_at_once(any_pair: tuple[Channel, Channel]) -> None:
    a, b = any_pair
    generator = np.random.default_rng(3)
    sizes = generator.integers(0, 3 * EAGER, 60)
    sent = [values(size, n) for n, size in enumerate(sizes)]
    got = [[np.zeros_like(each) for each in sent] for _ in range(2)]
    requests: list[list[Any]] = [[], []]
    for own, other, mine in ((0, 1, a), (1, 0, b)):
        for n in generator.permutation(60):
            requests[own].append(mine.receive([got[own][n]], other, int(n)))
        for n in generator.permutation(60):
            requests[own].append(mine.send([sent[n]], other, int(n)))
    both(a, requests[0], b, requests[1])
    for found in got:
        np.testing.assert_equal(sent, found)


def test_a_small_message_overtakes_a_large_one(pair: tuple[Adaptive, Adaptive]) -> None:
    a, b = pair
    large, small = np.zeros(64 << 20, np.uint8), np.zeros(1, np.uint8)
    first = b.receive([np.empty_like(large)], 0, 0)
    second = b.receive([np.empty_like(small)], 0, 1)
    b.complete([])
    sends = [a.send([large], 1, 0)]
    a.complete(sends)
    sends.append(a.send([small], 1, 1))
    while not second.done:
        a.complete(sends)
        b.complete([])
        assert second.done or not first.done
    both(a, sends, b, [first])


def test_another_size_than_awaited_is_told(any_pair: tuple[Channel, Channel]) -> None:
    a, b = any_pair
    with pytest.raises(UserError, match=rf"rank 0 is lost: it sent {OTHER}"):
        both(a, [a.send([values(8)], 1, 0)], b, [b.receive([values(4)], 0, 0)])


def test_a_peer_that_leaves_is_missed_only_by_who_waits(pair: tuple[Adaptive, Adaptive]) -> None:
    a, b = pair
    a.close()
    assert b.complete([]) == []
    assert b.complete([]) == []


def test_a_peer_that_leaves_amid_a_message_is_told(pair: tuple[Adaptive, Adaptive]) -> None:
    a, b = pair
    waiting = b.receive([values(8)], 0, 0)
    a.close()
    with pytest.raises(UserError, match="the connection to rank 0 is lost"):
        b.wait([waiting])


def test_a_stranger_cannot_use_grpc() -> None:
    grpc = pytest.importorskip("grpc")
    targets: list[str] = []

    def work(rank: int, gather: Callable[[Any], list[Any]]) -> GrpcStream:
        def told(value: Any) -> list[Any]:
            if ":" in value:
                targets.append(value)
            return gather(value)

        return GrpcStream(rank, 2, told, "127.0.0.1")

    ends = on_ranks(2, work)
    with grpc.insecure_channel(targets[0]) as link:
        for metadata in (), (("token", "x"), ("rank", "1")):
            call = link.stream_unary("/osucaffe.Messages/Stream")
            with pytest.raises(grpc.RpcError, match="not a process of this job"):
                call(iter([b"\0\0\0\0stranger"]), metadata=metadata, timeout=30)
    on_ranks(2, lambda rank, gather: ends[rank].close())


def test_an_interface_without_an_address_is_told() -> None:
    assert find_interface(None, alone=True) == ("lo", "127.0.0.1")
    assert find_interface("lo", alone=False) == ("lo", "127.0.0.1")
    with pytest.raises(UserError, match="--interface nix0: has no IPv4 address here; there are"):
        find_interface("nix0", alone=False)
