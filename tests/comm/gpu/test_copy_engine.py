"""The communicator of copy engines on simulated GPUs: any operations in order, replayed, and in
any order that the streams allow.

Copies, flags and sums are those of the host: what is tested is who copies what, and when.
"""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.comm.algorithms import OPERATIONS
from osucaffe.comm.gpu import copy_engine, kernels
from osucaffe.comm.gpu.copy_engine import CopyEngine
from osucaffe.comm.host import DTYPES
from tests.backends.cuda.devices import H200
from tests.backends.cuda.simulated import compile_for_communicators

from ..collectives import check_result, values
from ..streams import Captured, Device, Event, World, array, exchange, run

SIZES = [2, 3, 4, 7]
COUNTS = (1, 5, 100, 1001, 3000)
TYPES = ("float32", "float64", "int32", "uint16")
GATHERS = ("broadcast", "all_gather")


Call = tuple[str, Sequence[Any], int]
"""An operation, each rank's array, and the root."""


def gpus(size: int, queues: int | None = None) -> list[Device]:
    return [Device(queues=queues) for _ in range(size)]


class Ranks:
    """A communicator's ranks on simulated GPUs, and what they found."""

    def __init__(self, devices: list[Device]) -> None:
        self.world = World(len(devices))
        self.devices = devices
        size = len(devices)
        self.comms = [self._make(rank) for rank in range(size)]
        self.found: list[tuple[Any, ...]] = []

    def _make(self, rank: int) -> Any:
        comm: Any = object.__new__(CopyEngine)
        device, size = self.devices[rank], self.world.size

        def copy(to: int, source: int, nbytes: int, kind: int, stream: int) -> None:
            device.streams[stream].put(lambda: ctypes.memmove(to, source, nbytes))

        def small(operation: str, array: Any, root: int, stream: Any) -> None:
            raise AssertionError(f"{array.nbytes} bytes are not few")

        comm.rank, comm.size, comm._pitch, comm._slots = rank, size, 0, [0] * size
        comm._peers, comm._arrays = self.world.peers(rank), {}
        comm._flags = comm._peers.share(copy_engine.MEETINGS * size * copy_engine.FLAG_BYTES)
        comm.stream, comm._adding = device.stream(), device.stream()
        comm._cupy = SimpleNamespace(cuda=SimpleNamespace(Event=Event))
        comm._runtime = SimpleNamespace(memcpyAsync=copy)
        comm._small = SimpleNamespace(enqueue=small)
        return comm

    def capture(self, calls: Sequence[Call]) -> list[list[Captured]]:
        """What `enqueue` would do, for each rank, to be replayed; done once before, as it must."""
        for call in calls:
            self.enqueue(*call)
        for device in self.devices:
            device.tape = []
        for call in calls:
            self.enqueue(*call)
        tapes = [device.tape for device in self.devices]
        for device in self.devices:
            device.tape = None
        return tapes

    def replay(self, tapes: list[list[Captured]], choose: random.Random) -> None:
        for device, tape in zip(self.devices, tapes, strict=True):
            assert tape
            device.replay(tape, choose)

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


def _launch_over(function: Any, count: int, arguments: Any, stream: Any, per_sm: int = 2) -> None:
    stream.put(lambda: function(*arguments))


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small arrays take the ways of large ones: parts are cut into as many pieces."""
    monkeypatch.setattr(copy_engine, "exchange", exchange)
    monkeypatch.setattr(copy_engine, "kernel", _kernel)
    monkeypatch.setattr(copy_engine, "launch_over", _launch_over)
    monkeypatch.setattr(copy_engine, "SMALL", 0)
    monkeypatch.setattr(copy_engine, "PIECE_BYTES", 400)


def _calls(choose: random.Random, world: World, count: int) -> list[Call]:
    """Operations on arrays that come again and again; sums of what NumPy adds."""
    arrays = [world.make(length, dtype) for length in COUNTS for dtype in TYPES]
    calls: list[Call] = []
    for _ in range(count):
        which = choose.choice(arrays)
        names = GATHERS if which[0].dtype == np.uint16 else OPERATIONS
        calls.append((choose.choice(list(names)), which, choose.randrange(world.size)))
    return calls


@pytest.mark.parametrize("queues", [None, 1])
@pytest.mark.parametrize("size", SIZES)
def test_any_operations_in_any_order(size: int, queues: int | None) -> None:
    choose = random.Random(size)
    ranks = Ranks(gpus(size, queues))
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
    ranks = Ranks(gpus(size, queues))
    other = ranks.world.make(333, "float32")
    calls = [(name, ranks.world.make(1001 * size, "float32"), size - 1) for name in operations]
    tapes = ranks.capture(calls)
    for turn in range(6):
        ranks.replay(tapes, choose)
        if turn == 3:
            ranks.enqueue("reduce_scatter", other, 0)
    run(ranks.devices, choose)
    ranks.check(7 * len(operations) + 1)


@pytest.mark.parametrize("queues", [None, 1, 2, 3])
@pytest.mark.parametrize("size", [2, 4])
def test_communicators_take_turns(size: int, queues: int | None) -> None:
    """Each with a graph, as solvers that live at the same time, and with operations behind it that
    are in none (`settle`). Their streams share queues, as those of a GPU do."""
    choose, devices = random.Random(size), gpus(size, queues)
    made = [Ranks(devices) for _ in range(4)]
    calls = [
        [
            ("reduce_scatter", ranks.world.make(1001 * size, "float32"), 0),
            ("reduce_scatter", ranks.world.make(600, "float32"), 0),
            ("all_gather", ranks.world.make(777, "uint16"), 0),
        ]
        for ranks in made
    ]
    tapes = [ranks.capture(each) for ranks, each in zip(made, calls, strict=True)]
    for _ in range(3):
        for ranks, tape, each in zip(made, tapes, calls, strict=True):
            for _ in range(4):
                ranks.replay(tape, choose)
            ranks.enqueue(*each[-1])
    run(devices, choose)
    for ranks in made:
        ranks.check(3 + 3 * (4 * 3 + 1))


@pytest.mark.parametrize("queues", [None, 1])
def test_all_ranks_must_take_the_same_turns(queues: int | None) -> None:
    """The simulation notices it: streams of one queue wait for one another."""
    devices = gpus(2, queues)
    made = [Ranks(devices), Ranks(devices)]
    arrays = [ranks.world.make(500, "float32") for ranks in made]
    for rank in range(2):
        for number in (rank, 1 - rank):
            comm = made[number].comms[rank]
            comm.enqueue("all_gather", arrays[number][rank], 0, comm.stream)
    if queues is None:
        run(devices, random.Random(0))
        return
    with pytest.raises(AssertionError, match="all ranks wait for one another"):
        run(devices, random.Random(0))


def test_all_but_the_last_piece_are_added_beside_the_copies() -> None:
    ranks = Ranks(gpus(2))
    _, adding = ranks.devices[0].queues
    for count, beside in ((2 * 399 // 4, 0), (2 * 250, 1), (2 * 3000, copy_engine.PIECES - 1)):
        before = len(adding)
        ranks.enqueue("reduce_scatter", ranks.world.make(count, "float32"), 0)
        # For each a wait for its copies, one for the flag, its reset, the sum; then the end of all.
        assert len(adding) - before == 4 * beside + (beside > 0)


def test_a_flag_that_nobody_saw_is_not_raised_again() -> None:
    """The simulation notices it: two operations of a single and the same meeting."""
    flags = np.zeros((2, 2), np.uint64)
    devices = gpus(2)
    streams = [device.stream() for device in devices]
    for _ in range(40):
        for rank, stream in enumerate(streams):
            exchange(stream, [flags[1 - rank, rank:].ctypes.data],
                     [flags[rank, 1 - rank :].ctypes.data])  # fmt: skip
    with pytest.raises(AssertionError, match="raised that nobody had seen"):
        run(devices, random.Random(0))


def test_small_arrays_are_left_to_ipc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_engine, "SMALL", 64)
    comm = Ranks(gpus(2)).comms[0]
    seen: list[tuple[Any, ...]] = []
    comm._small = SimpleNamespace(launch=lambda *given: seen.append(given))
    few = array(np.zeros(16, np.float32))
    comm.enqueue("all_gather", few, 1, comm.stream)
    assert seen == [("all_gather", few, 1, comm.stream)]
    with pytest.raises(AssertionError, match="no such array"):  # it looks where a large one lies
        comm.enqueue("all_gather", array(np.zeros(17, np.float32)), 1, comm.stream)


@pytest.mark.parametrize("dtype", DTYPES)
def test_launches_fit_the_kernel(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(function: Any, blocks: int, threads: int, arguments: Any, stream: Any) -> None:
        assert blocks <= H200.sm_count
        function((blocks,), (threads,), arguments)
        launched.append(blocks)

    compile_for_communicators(monkeypatch)
    monkeypatch.setattr(kernels, "launch", launch)
    monkeypatch.setattr(copy_engine, "kernel", kernels.kernel)
    monkeypatch.setattr(copy_engine, "launch_over", kernels.launch_over)
    launched: list[int] = []
    ranks = Ranks(gpus(3))
    for count in (1, 1001, 3_000_001):
        flat = ranks.world.make(count, dtype)[2]
        ranks.comms[2].enqueue("reduce_scatter", flat, 0, ranks.comms[2].stream)
    assert launched[0] == 1
    assert launched[-1] > 1
