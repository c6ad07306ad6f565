"""Memory that ranks share: mapped once, and given back when nobody maps it any more."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.comm.gpu import peers
from osucaffe.errors import UserError


class Refused(Exception):
    """What CUDA's runtime raises."""


class World:
    """Rank 0 of two, of which the other one does the same."""

    rank = 0

    def __init__(self, done: list[str]) -> None:
        self._done = done

    def allgather(self, value: Any) -> list[Any]:
        return [value, (b"other", value[1]) if isinstance(value, tuple) else value]

    def Barrier(self) -> None:
        self._done.append("all are here")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done, on a device where allocations begin at multiples of 1000."""
    done: list[str] = []

    def opened(handle: bytes) -> int:
        done.append(f"map {handle.decode()}")
        return 7000

    runtime = SimpleNamespace(
        CUDARuntimeError=Refused,
        malloc=lambda nbytes: (done.append(f"take {nbytes}"), 3000)[1],
        memset=lambda pointer, value, nbytes: done.append(f"{nbytes} x {value} at {pointer}"),
        deviceSynchronize=lambda: done.append("wait"),
        ipcGetMemHandle=lambda pointer: b"%d" % pointer,
        ipcOpenMemHandle=opened,
        ipcCloseMemHandle=lambda pointer: done.append(f"unmap {pointer}"),
        free=lambda pointer: done.append(f"free {pointer}"),
    )
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(peers, "allocation", lambda pointer: pointer // 1000 * 1000)
    return done


def test_what_is_shared_is_given_back_when_nobody_maps_it(done: list[str]) -> None:
    made = peers.Peers(World(done))
    assert made.share(64) == [3000, 7000]
    assert made.addresses(3024) == [3024, 7024]  # the same allocation: mapped already
    made.close()
    made.close()
    assert done == [
        "take 2097152", "64 x 0 at 3000", "wait", "map other",
        "unmap 7000", "all are here", "free 3000", "all are here",
    ]  # fmt: skip


def test_what_cannot_be_mapped_is_given_back_at_once(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: bytes) -> int:
        raise Refused("no way")

    made = peers.Peers(World(done))
    monkeypatch.setattr(made._runtime, "ipcOpenMemHandle", refuse)
    with pytest.raises(UserError, match=r"cannot be mapped \(no way\): use --comm nccl or mpi"):
        made.share(8)
    assert done == ["take 2097152", "8 x 0 at 3000", "wait", "all are here", "free 3000"]
