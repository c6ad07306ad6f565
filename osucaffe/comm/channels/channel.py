"""What a channel is: messages between pairs of ranks, under way while the caller goes on; and
the channel over MPI's send and receive.

A message is the bytes of one contiguous array, or of several as if they lay one after the other.
It meets the receive of the same pair of ranks and tag, in the order in which they were begun. Each
thread may begin messages, and ask about its own.

Other channels send and fill a message in parts (`Run`), or mostly at once (`Request`).
"""

from __future__ import annotations

import io
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...errors import UserError

_NAP = 50e-6, 1e-3  # the first and the longest nap, seconds


class Channel(ABC):
    """Ranks 0 .. size - 1 that send messages to one another.

    Between two polls, a waiting thread yields its core to whatever else can run, so that on busy
    cores the awaited message arrives without a sleep. busy: it keeps polling; otherwise it sleeps
    after a few polls.
    """

    spins = 50
    """Polls before a sleep."""

    def __init__(self, rank: int, size: int, *, busy: bool = False) -> None:
        self.rank, self.size, self.busy = rank, size, busy

    @abstractmethod
    def send(self, arrays: Sequence[np.ndarray], to: int, tag: int) -> Any:
        """Start sending; the arrays must not change until the request is complete."""

    @abstractmethod
    def receive(self, arrays: Sequence[np.ndarray], source: int, tag: int) -> Any:
        """Start receiving a message of exactly this size; the arrays are undefined until then."""

    @abstractmethod
    def complete(self, requests: Sequence[Any]) -> list[int]:
        """The indices of the requests that have completed. Each is reported once, and must not be
        passed again. Does not block."""

    def buffer(self, count: int, dtype: str = "float32") -> np.ndarray:
        """Memory of `count` elements that messages are sent from and received into uncopied."""
        return np.empty(count, dtype)

    def idle(self, seconds: float) -> None:
        """Sleep for this time, or until something arrives."""
        time.sleep(seconds)

    def wait(self, requests: Sequence[Any]) -> None:
        """Return when all are complete."""
        pending = Pending(self)
        for request in requests:
            pending.add(request)
        pending.drain()

    @abstractmethod
    def close(self) -> None:
        """Give everything back; nothing is under way any more."""


class Pending:
    """Requests under way, each with what is to be done when it is complete."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._requests: list[Any] = []
        self._actions: list[Callable[[], object] | None] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Any, action: Callable[[], object] | None = None) -> None:
        """Remember one."""
        self._requests.append(request)
        self._actions.append(action)

    def poll(self) -> bool:
        """Do what is to be done for those that are complete now; whether there were any."""
        done = self._channel.complete(self._requests) if self._requests else []
        if not done:
            return False
        actions = [self._actions[index] for index in done]
        for index in sorted(done, reverse=True):
            del self._requests[index], self._actions[index]
        for action in actions:
            if action is not None:
                action()
        return True

    def drain(self) -> None:
        """Return when none is left."""
        pause = Pause(self._channel)
        while self._requests:
            pause.after(progress=self.poll())


class Pause:
    """Between two polls of pending requests: no pause at first, then growing naps, which leave the
    core to the threads that compute."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._idle = 0
        self._nap = _NAP[0]

    def after(self, *, progress: bool) -> None:
        """Pause unless the last poll made progress."""
        if progress:
            self._idle, self._nap = 0, _NAP[0]
            return
        self._idle += 1
        if self._channel.busy or self._idle <= self._channel.spins:
            os.sched_yield()
        else:
            self._channel.idle(self._nap)
            self._nap = min(2 * self._nap, _NAP[1])


def connection_lost(rank: int, why: str) -> UserError:
    """The error for a rank that can no longer be sent to, or received from."""
    return UserError(f"the connection to rank {rank} is lost: {why}")


def size_mismatch(sent: int, awaited: int) -> str:
    """The reason to close a connection: a message has another size than the posted receive."""
    return f"it sent {sent:,} bytes, expected {awaited:,}"


class MpiChannel(Channel):
    """Messages over a duplicate of an MPI communicator, so that they never mix with others."""

    def __init__(self, mpi: Any, comm: Any, *, busy: bool = False) -> None:
        super().__init__(comm.rank, comm.size, busy=busy)
        self._mpi = mpi
        self._comm = comm.Dup()

    def send(self, arrays: Sequence[np.ndarray], to: int, tag: int) -> Any:
        return self._begin(self._comm.Isend, arrays, to, tag)

    def receive(self, arrays: Sequence[np.ndarray], source: int, tag: int) -> Any:
        return self._begin(self._comm.Irecv, arrays, source, tag)

    def _begin(self, call: Any, arrays: Sequence[np.ndarray], rank: int, tag: int) -> Any:
        """One message of MPI's for each array: a type that gathers them is slower by far."""
        return [call([array.view(np.uint8), self._mpi.BYTE], rank, tag) for array in arrays]

    def complete(self, requests: Sequence[Any]) -> list[int]:
        test = self._mpi.Request.Testall
        return [index for index, several in enumerate(requests) if test(several)]

    def close(self) -> None:
        self._comm.Free()


class Run:
    """What is left of a message's bytes; the arrays themselves are never copied.

    nbytes: how many are left.
    """

    __slots__ = ("nbytes", "views")

    def __init__(self, views: Iterable[memoryview], nbytes: int) -> None:
        self.views = deque(views)
        self.nbytes = nbytes

    def head(self, most: int) -> list[memoryview]:
        """The first bytes that are left, up to that many."""
        views = []
        for view in self.views:
            if most <= 0:
                break
            views.append(view[:most] if len(view) > most else view)
            most -= len(view)
        return views

    def drop(self, count: int) -> None:
        """How many are done."""
        self.nbytes -= count
        views = self.views
        if not self.nbytes:
            views.clear()
            return
        while count:
            first = views[0]
            if count < len(first):
                views[0] = first[count:]
                return
            count -= len(first)
            views.popleft()

    def fill(self, source: memoryview) -> int:
        """Overwrite the first bytes that are left; how many it took."""
        done, most = 0, len(source)
        for view in self.views:
            end = done + len(view)
            if end > most:
                view[: most - done] = source[done:]
                done = most
                break
            view[:] = source[done:end]
            done = end
        self.drop(done)
        return done


def views_of(arrays: Sequence[np.ndarray]) -> list[memoryview]:
    """The bytes of each array that has any."""
    return [array.data.cast("B") for array in arrays if array.size]


class Request(Run):
    """A message under way. size: its bytes. It has views only once it is sent or filled in parts:
    they cost more than all else that a small one needs."""

    __slots__ = ("arrays", "done", "size", "tag")

    def __init__(self, arrays: Sequence[np.ndarray], tag: int) -> None:
        self.arrays = arrays
        self.size = sum([array.nbytes for array in arrays])
        self.tag = tag
        self.done = False

    def in_parts(self) -> Request:
        """This one, with views."""
        super().__init__(views_of(self.arrays), self.size)
        return self

    def take(self, source: memoryview) -> None:
        """All of it is here: fill the arrays."""
        reader = io.BytesIO(source)
        for array in self.arrays:
            reader.readinto(array)  # type: ignore[arg-type]
        self.done = True
