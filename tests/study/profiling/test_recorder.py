"""The profile of a communicator: what it notes of operations, and that it notes nothing unasked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.comm.communicator import Communicator
from osucaffe.comm.gpu.half_precision import Narrowed
from osucaffe.comm.gpu.on_stream import OnStream
from osucaffe.comm.hierarchical import Hierarchical
from osucaffe.study.profiling.recorder import Clock, Profile, StreamClock, composed


class Silent(Communicator):
    """Does nothing, as rank 0 of several."""

    def __init__(self, size: int, level: str, *, background: bool = False) -> None:
        super().__init__(0, size, level=level, background=background)

    def run(self, operation: str, array: Any, root: int = 0) -> None:
        pass


def two_levels(*, background: bool) -> Hierarchical:
    """Rank 0 of two groups of two."""
    whole, local, cross = Silent(4, "network"), Silent(2, "node"), Silent(2, "network")
    return Hierarchical(whole, local, cross, [0, 0, 1, 1], background=background)


def carried(profile: Profile) -> list[list[tuple[str, str, int]]]:
    return [
        [(message.operation, message.level, message.nbytes) for message in each.messages]
        for each in profile.read()
    ]


@pytest.mark.parametrize("background", [False, True])
def test_what_each_level_carried(background: bool) -> None:
    comm = two_levels(background=background)
    profile = Profile(comm)
    array = np.zeros(64, np.float32)
    comm.all_reduce(array).wait()  # nobody asked for it
    profile.recording = True
    handles = [comm.all_reduce(array[16:32]), comm.broadcast(array)]
    profile.recording = False
    for handle in handles:
        handle.wait()
    comm.all_reduce(array).wait()
    comm.close()
    assert carried(profile) == [
        [("reduce", "node", 64), ("all_reduce", "network", 64), ("broadcast", "node", 64)],
        [("broadcast", "node", 256), ("broadcast", "network", 256)],
    ]
    first, second = profile.read()
    assert (first.name, first.nbytes) == ("all_reduce", 64)
    assert first.address - second.address == 64
    for each in (first, second):
        assert each.posted <= each.begun <= each.messages[0].begun
        assert each.messages[-1].ended <= each.ended
        assert len(each.waits) == 1
        assert each.messages[0].algorithm == "silent"
    assert background or first.waits[0][1] <= second.begun


def test_what_travels_in_16_bits_counts_so() -> None:
    comm = Narrowed(Silent(2, "node"), "float16")
    profile = Profile(comm)
    profile.recording = True
    comm.all_reduce(np.zeros(10, np.float32))
    assert carried(profile) == [[("all_reduce", "node", 20)]]
    assert profile.read()[0].nbytes == 40


def test_others_pay_nothing() -> None:
    comm = two_levels(background=False)
    for each in composed(comm):
        assert not {"run", "_begin", "enqueue"} & set(vars(each))


class FakeEvent:
    time = 0.0

    def __init__(self, **options: Any) -> None:
        pass

    def record(self, stream: FakeStream) -> None:
        self.time = stream.now

    def synchronize(self) -> None:
        pass


class FakeStream:
    """What is enqueued on it takes as long as it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def record(self) -> FakeEvent:
        event = FakeEvent()
        event.record(self)
        return event

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: FakeEvent) -> None:
        self.now = max(self.now, event.time)


class FakeGpu(OnStream):
    """An operation takes 5 ms of its stream."""

    def __init__(self) -> None:
        Communicator.__init__(self, 0, 2, level="gpu")
        self.stream = FakeStream()
        self._cupy = SimpleNamespace(cuda=SimpleNamespace(Event=FakeEvent))

    def enqueue(self, operation: str, array: Any, root: int, stream: Any) -> None:
        stream.now += 5.0


def test_times_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing goes on for 2 ms beside an operation of 5 ms: 3 are waited for."""
    made = StreamClock(FakeStream(), lambda a, b: b.time - a.time)
    monkeypatch.setattr(Profile, "make_clock", lambda self, comm: made)
    comm, stream = FakeGpu(), FakeStream()
    profile = Profile(comm)
    profile.recording = True
    stream.now = 1.0
    handle = comm.all_reduce(np.zeros(4, np.float32), stream)
    stream.now += 2.0
    handle.wait(stream)
    [found] = profile.read()
    zero = found.posted - 1e-3

    def ms(at: float) -> float:
        return pytest.approx((at - zero) * 1e3, abs=1e-6)

    assert [ms(found.begun), ms(found.ended)] == [1.0, 6.0]
    assert [ms(at) for at in found.waits[0]] == [3.0, 6.0]
    assert found.messages[0].algorithm == "fakegpu"


def test_the_hosts_clock() -> None:
    clock = Clock()
    assert clock.seconds(clock.mark()) <= clock.seconds(clock.mark())
