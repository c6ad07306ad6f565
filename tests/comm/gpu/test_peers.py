"""Memory of other ranks' GPUs, and what is handed to the CUDA driver for it: flags raised, awaited
and reset, in this order.
"""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.comm.gpu import peers
from osucaffe.errors import UserError

WAIT_64, WRITE_64 = 4, 5


def _use(monkeypatch: pytest.MonkeyPatch, **calls: Any) -> None:
    monkeypatch.setattr(peers, "cuda_driver", lambda: SimpleNamespace(**calls))


def test_operations_lie_as_the_driver_reads_them() -> None:
    """CUstreamBatchMemOpParams is a union of 6 words of 8 bytes."""
    fields = ("kind", "address", "value", "flags")
    assert [getattr(peers.Operation, name).offset for name in fields] == [0, 8, 16, 24]
    assert ctypes.sizeof(peers.Operation) == 48


def test_flags_are_raised_then_awaited_then_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def enqueue(stream: Any, count: int, batch: Any, flags: int) -> int:
        assert (stream.value, flags) == (9, 0)
        seen.extend((each.kind, each.address, each.value) for each in batch[:count])
        return 0

    _use(monkeypatch, cuStreamBatchMemOp_v2=enqueue)
    peers.exchange(SimpleNamespace(ptr=9), [100, 200], [300, 400])
    assert seen == [
        (WRITE_64, 100, 1), (WRITE_64, 200, 1), (WAIT_64, 300, 1), (WAIT_64, 400, 1),
        (WRITE_64, 300, 0), (WRITE_64, 400, 0),
    ]  # fmt: skip


def test_where_an_allocation_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(start: Any, size: None, pointer: Any) -> int:
        start._obj.value = pointer.value - 24
        return 0

    _use(monkeypatch, cuMemGetAddressRange_v2=query)
    assert peers.allocation((1 << 40) + 24) == 1 << 40


def test_the_drivers_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    _use(monkeypatch, cuStreamBatchMemOp_v2=lambda *given: 1)
    with pytest.raises(RuntimeError, match="the CUDA driver says error 1"):
        peers.exchange(SimpleNamespace(ptr=9), [100], [])


@pytest.mark.parametrize(("able", "call"), [(1, True), (0, True), (1, False)])
def test_a_gpu_or_driver_without_memory_operations_is_refused(
    able: int, call: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attribute(value: Any, number: int, device: Any) -> int:
        value._obj.value = able if number == 122 else 0
        return 0

    calls = {"cuCtxGetDevice": lambda device: 0, "cuDeviceGetAttribute": attribute}
    _use(monkeypatch, **calls, **({"cuStreamBatchMemOp_v2": None} if call else {}))
    if able and call:
        peers.require_flags()
        return
    with pytest.raises(UserError, match=r"no stream memory operations.*--comm nccl or ipc"):
        peers.require_flags()


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
