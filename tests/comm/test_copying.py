"""The communicator of copy engines on simulated GPUs: any operations in order, replayed, and in
any order that the streams allow.

Copies, flags and sums are those of the host: what is tested is who copies what, and when.
"""

from __future__ import annotations

import ctypes
import functools
import random
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.comm import copying, kernels
from osucaffe.comm.algorithms import OPERATIONS
from osucaffe.comm.copying import Copying
from osucaffe.comm.host import DTYPES
from tests.backends.cuda.simulated import Kernel, compile_ptx, nvrtc

from .collectives import check_result, values
from .streams import Device, Event, World, array, exchange, run

SIZES = [2, 3, 4, 7]
COUNTS = (1, 5, 100, 1001, 3000)
TYPES = ("float32", "float64", "int32", "uint16")
GATHERS = ("broadcast", "all_gather")


class Ranks:
    """Communicators over simulated GPUs, a stream for what each computes, and what they found."""

    def __init__(self, size: int, queues: int | None = None) -> None:
        self.world = World(size)
        self.devices = [Device(queues=queues) for _ in range(size)]
        self.comms = [self._make(rank) for rank in range(size)]
        self.found: list[tuple[Any, ...]] = []

    def _make(self, rank: int) -> Any:
        comm: Any = object.__new__(Copying)
        device, size = self.devices[rank], self.world.size

        def copy(to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
            device.streams[stream].put(lambda: ctypes.memmove(to, source, nbytes))

        def small(operation: str, array: Any, root: int, stream: Any) -> None:
            raise AssertionError(f"{array.nbytes} bytes are not few")

        comm.rank, comm.size, comm._pitch, comm._slots = rank, size, 0, [0] * size
        comm._peers, comm._arrays = self.world.peers(rank), {}
        comm._flags = comm._peers.share(copying.MEETINGS * size * copying.FLAG_BYTES)
        comm.stream, comm._adding = device.stream(), device.stream()
        comm._cupy = SimpleNamespace(cuda=SimpleNamespace(Event=Event))
        comm._runtime = SimpleNamespace(memcpyAsync=copy)
        comm._small = SimpleNamespace(enqueue=small)
        return comm

    def enqueue(self, operation: str, arrays: Sequence[Any], root: int) -> None:
        """On all ranks: fresh values, the operation, and a look at what came out."""
        for comm, flat in zip(self.comms, arrays, strict=True):
            fresh = values(comm.rank, flat.size, flat.dtype.name)
            comm.stream.put(lambda flat=flat, fresh=fresh: np.copyto(flat, fresh))
            comm.enqueue(operation, flat, root, comm.stream)
            look = functools.partial(self._look, comm, operation, flat, root)
            comm.stream.put(look)

    def _look(self, comm: Any, operation: str, flat: Any, root: int) -> None:
        self.found.append((comm, operation, np.array(flat), root))

    def check(self, times: int) -> None:
        """All results are right."""
        assert len(self.found) == times * self.world.size
        for comm, operation, got, root in self.found:
            arrays = [values(rank, got.size, got.dtype.name) for rank in range(comm.size)]
            check_result(comm, operation, got, [each.astype(float) for each in arrays], root)


def _kernel(name: str, function: str, dtype: str, **macros: int) -> Any:
    def add(x: Any, count: Any, slots: Any, pitch: Any) -> None:
        for peer in range(macros["PEERS"]):
            there = int(slots) + peer * int(pitch)
            x += np.frombuffer((ctypes.c_char * x.nbytes).from_address(there), dtype)

    return add


def _launch(function: Any, blocks: int, threads: int, arguments: Any, stream: Any) -> None:
    stream.put(lambda: function(*arguments))


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays take the ways of large ones: parts are cut into as many pieces."""
    for name, value in {"exchange": exchange, "kernel": _kernel, "launch": _launch}.items():
        monkeypatch.setattr(copying, name, value)
    monkeypatch.setattr(copying, "SMALL", 0)
    monkeypatch.setattr(copying, "PIECE_BYTES", 400)


def _calls(choose: random.Random, world: World, count: int) -> list[tuple[str, list[Any], int]]:
    """Operations on arrays that come again and again; sums of what NumPy adds."""
    arrays = [world.make(length, dtype) for length in COUNTS for dtype in TYPES]
    calls = []
    for _ in range(count):
        which = choose.choice(arrays)
        names = GATHERS if which[0].dtype == np.uint16 else OPERATIONS
        calls.append((choose.choice(list(names)), which, choose.randrange(world.size)))
    return calls


@pytest.mark.parametrize("queues", [None, 1])
@pytest.mark.parametrize("size", SIZES)
def test_any_operations_in_any_order(size: int, queues: int | None) -> None:
    choose = random.Random(size)
    ranks = Ranks(size, queues)
    calls = _calls(choose, ranks.world, 150)
    assert {call[0] for call in calls} == set(OPERATIONS)
    for call in calls:
        ranks.enqueue(*call)
    run(ranks.devices, choose)
    ranks.check(len(calls))


@pytest.mark.parametrize("queues", [None, 1])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "operations",
    [
        *[(operation,) for operation in OPERATIONS],
        ("reduce_scatter", "all_gather"),
        ("reduce_scatter", "reduce_scatter", "broadcast"),
    ],
)
def test_replays_of_any_operations(
    operations: tuple[str, ...], size: int, queues: int | None
) -> None:
    """A graph of some operations, replayed beside others; one of one operation follows itself.

    With one queue each GPU has its operations in another order.
    """
    choose = random.Random(size)
    ranks = Ranks(size, queues)
    pairs = [(name, ranks.world.make(1001 * size, "float32"), size - 1) for name in operations]
    other = ranks.world.make(333, "float32")
    for call in pairs:
        ranks.enqueue(*call)
    for device in ranks.devices:
        device.tape = []
    for call in pairs:
        ranks.enqueue(*call)
    tapes = [device.tape for device in ranks.devices]
    for device in ranks.devices:
        device.tape = None
    for turn in range(6):
        for device, tape in zip(ranks.devices, tapes, strict=True):
            assert tape
            device.replay(tape, choose)
        if turn == 3:
            ranks.enqueue("reduce_scatter", other, 0)
    run(ranks.devices, choose)
    ranks.check(7 * len(operations) + 1)


def test_all_but_the_last_piece_are_added_beside_the_copies() -> None:
    ranks = Ranks(2)
    _, adding = ranks.devices[0].queues
    for count, beside in ((2 * 399 // 4, 0), (2 * 250, 1), (2 * 3000, copying.PIECES - 1)):
        before = len(adding)
        ranks.enqueue("reduce_scatter", ranks.world.make(count, "float32"), 0)
        # For each a wait for its copies, one for the flag, its reset, the sum; then the end of all.
        assert len(adding) - before == 4 * beside + (beside > 0)


def test_a_flag_that_nobody_saw_is_not_raised_again() -> None:
    """The simulation notices it: two operations of a single and the same meeting."""
    flags = np.zeros((2, 2), np.uint64)
    devices = [Device(), Device()]
    streams = [device.stream() for device in devices]
    for _ in range(40):
        for rank, stream in enumerate(streams):
            exchange(stream, [flags[1 - rank, rank:].ctypes.data],
                     [flags[rank, 1 - rank :].ctypes.data])  # fmt: skip
    with pytest.raises(AssertionError, match="raised that nobody had seen"):
        run(devices, random.Random(0))


def test_small_arrays_are_left_to_ipc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "SMALL", 64)
    comm = Ranks(2).comms[0]
    seen: list[tuple[Any, ...]] = []
    comm._small = SimpleNamespace(enqueue=lambda *given: seen.append(given))
    few = array(np.zeros(16, np.float32))
    comm.enqueue("all_gather", few, 1, comm.stream)
    assert seen == [("all_gather", few, 1, comm.stream)]
    with pytest.raises(AssertionError, match="no such array"):  # it looks where a large one lies
        comm.enqueue("all_gather", array(np.zeros(17, np.float32)), 1, comm.stream)


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize("dtype", DTYPES)
def test_launches_fit_the_kernel(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def module(code: str, options: tuple[str, ...]) -> Any:
        return SimpleNamespace(get_function=functools.partial(Kernel, compile_ptx(code, options)))

    def launch(function: Any, blocks: int, threads: int, arguments: Any, stream: Any) -> None:
        assert blocks <= copying.BLOCKS
        function((blocks,), (threads,), arguments)
        launched.append(blocks)

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=module))
    monkeypatch.setattr(kernels, "_module", kernels._module.__wrapped__)
    monkeypatch.setattr(copying, "kernel", kernels.kernel.__wrapped__)
    monkeypatch.setattr(copying, "launch", launch)
    launched: list[int] = []
    ranks = Ranks(3)
    for count in (1, 1001, 3_000_001):
        flat = ranks.world.make(count, dtype)[2]
        ranks.comms[2].enqueue("reduce_scatter", flat, 0, ranks.comms[2].stream)
    assert launched[0] == 1
    assert launched[-1] > 1
