"""GPUs that several ranks use, simulated: streams, events, graphs, memory that all can reach.

What was enqueued is done later, in any order that the streams and events allow (`run`), or, with
a number of `queues`, as if each GPU had no more: what streams of one queue have got is done in the
order in which it was enqueued, and what was captured in any that its streams and events allow.
"""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

Operation = Callable[[], bool]
"""Returns whether it could be done now; is tried again if not."""


class Captured(NamedTuple):
    """What enqueues an operation. It comes behind those of its stream before, and the `after`."""

    stream: Stream
    put: Callable[[], None]
    event: Event | None = None
    after: Event | None = None


class Array(np.ndarray):
    """Host memory whose address is asked for as CuPy gives it."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)


def array(values: np.ndarray) -> Any:
    """A copy of an array."""
    return np.array(values).view(Array)


class Device:
    """The streams of one rank. While `tape` is a list, they are captured."""

    def __init__(self, *, queues: int | None = None) -> None:
        self.streams: list[Stream] = []
        self.queues: list[deque[Operation]] = []
        self.tape: list[Captured] | None = None
        self._most = queues

    def stream(self, **settings: Any) -> Stream:
        number = len(self.streams)
        if self._most is None or number < self._most:
            self.queues.append(deque())
        queue = self.queues[number % len(self.queues)]
        self.streams.append(Stream(self, number, queue))
        return self.streams[-1]

    def issue(self, made: Captured) -> None:
        """Enqueue, or keep it for `replay`."""
        if self.tape is None:
            made.put()
        else:
            self.tape.append(made)

    def replay(self, tape: Sequence[Captured], choose: random.Random) -> None:
        """Enqueue what was captured, in an order that it allows."""
        left = [deque(each for each in tape if each.stream is stream) for stream in self.streams]
        ended: set[Event | None] = {None}
        while any(left):
            free = [each for each in left if each and each[0].after in ended]
            made = choose.choice(free).popleft()
            made.put()
            ended.add(made.event)


class Stream:
    """Operations in order."""

    def __init__(self, device: Device, ptr: int, queue: deque[Operation]) -> None:
        self.device, self.ptr, self._queue = device, ptr, queue

    def put(self, operation: Callable[[], Any]) -> None:
        """Enqueue what can be done whenever its turn comes."""
        self.put_when(lambda: (operation(), True)[1])

    def put_when(self, operation: Operation) -> None:
        self.device.issue(Captured(self, lambda: self._queue.append(operation)))

    def wait_event(self, event: Event) -> None:
        def put() -> None:
            number = event.recorded
            self._queue.append(lambda: event.done >= number)

        self.device.issue(Captured(self, put, after=event))


class Event:
    """Waits for it mean its last record before them."""

    def __init__(self, **settings: Any) -> None:
        self.recorded = self.done = 0

    def record(self, stream: Stream) -> None:
        def put() -> None:
            self.recorded += 1
            number = self.recorded
            stream._queue.append(lambda: (setattr(self, "done", number), True)[1])

        stream.device.issue(Captured(stream, put, event=self))


def exchange(stream: Stream, raised: Sequence[int], awaited: Sequence[int]) -> None:
    """Stands for `peers.exchange`. A flag that is raised must have been seen before."""

    def flag(address: int) -> Any:
        return ctypes.c_uint64.from_address(address)

    def put(address: int) -> None:
        assert not flag(address).value, "a flag was raised that nobody had seen"
        flag(address).value = 1

    def reset(address: int) -> None:
        flag(address).value = 0

    for address in raised:
        stream.put(lambda at=address: put(at))
    for address in awaited:
        stream.put_when(lambda at=address: flag(at).value == 1)
    for address in awaited:
        stream.put(lambda at=address: reset(at))


class World:
    """Memory that the ranks share, and arrays that each has at the same turn."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.arrays: list[list[Any]] = []
        self.shared: list[list[Any]] = []

    def make(self, count: int, dtype: str) -> list[Any]:
        """An array for each rank."""
        self.arrays.append([array(np.zeros(count, dtype)) for _ in range(self.size)])
        return self.arrays[-1]

    def peers(self, rank: int) -> Any:
        """Stands for `Peers`."""
        number = 0

        def share(nbytes: int) -> list[int]:
            nonlocal number
            if number == len(self.shared):
                self.shared.append([np.zeros(nbytes + 16, np.uint8) for _ in range(self.size)])
            number += 1
            made = self.shared[number - 1]
            assert made[0].size == nbytes + 16, "the ranks share memory of different sizes"
            return [-(-each.ctypes.data // 16) * 16 for each in made]

        def addresses(pointer: int) -> list[int]:
            for each in self.arrays:
                if each[rank].ctypes.data == pointer:
                    return [other.ctypes.data for other in each]
            raise AssertionError("no such array")

        return SimpleNamespace(share=share, addresses=addresses, close=lambda: None)


def run(devices: Sequence[Device], choose: random.Random) -> None:
    """Do all that was enqueued. AssertionError where nothing of it can ever be done."""
    queues = [queue for device in devices for queue in device.queues]
    while waiting := [queue for queue in queues if queue]:
        choose.shuffle(waiting)
        done = 0
        for queue in waiting:
            for _ in range(choose.randrange(1, 8)):
                if not queue or not queue[0]():
                    break
                queue.popleft()
                done += 1
        assert done, "all ranks wait for one another"
