"""The profile of a communicator: its operations, when they ran, and how long callers waited.

A profile is the recorder of the communicators that it is given. Times are seconds of
`time.perf_counter`, those of a GPU's streams, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...comm.algorithms import Operation
from ...comm.communicator import DONE, Begin, Communicator, Handle
from ...comm.gpu.on_stream import OnStream

Mark = Any
"""A moment recorded by a clock; `Clock.seconds` converts it."""


class Clock:
    """Of the host: work is done when a call returns."""

    def mark(self, stream: Any = None) -> Mark:
        """Now."""
        return time.perf_counter()

    def seconds(self, mark: Mark) -> float:
        """When that was."""
        return float(mark)


class StreamClock(Clock):
    """Of streams of a GPU: a mark is the event that all that was enqueued before has run."""

    def __init__(self, stream: Any, elapsed: Callable[[Any, Any], float]) -> None:
        """elapsed: the milliseconds between two events."""
        self._elapsed = elapsed
        stream.synchronize()
        self._zero = stream.record()
        self._zero.synchronize()
        self._start = time.perf_counter()

    def mark(self, stream: Any = None) -> Mark:
        """Record when the stream reaches this point."""
        return stream.record()

    def seconds(self, mark: Mark) -> float:
        """Waits for it."""
        mark.synchronize()
        return self._start + self._elapsed(self._zero, mark) / 1e3


class Message(NamedTuple):
    """What one communicator, possibly an inner one, transferred for an operation."""

    operation: str
    algorithm: str
    level: str
    nbytes: int
    begun: Mark
    ended: Mark


@dataclass
class Posted:
    """A collective operation as its caller sees it. address: of the array.

    posted: when the caller posted it; begun, ended: when it ran; waits: when the caller only
    waited for it.
    """

    name: str
    nbytes: int
    address: int
    posted: Mark
    begun: Mark = None
    ended: Mark = None
    waits: list[tuple[Mark, Mark]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


class _Waited(Handle):
    """A handle that records when it is waited for."""

    def __init__(self, inner: Handle, operation: Posted, clock: Clock) -> None:
        self._inner, self._operation, self._clock = inner, operation, clock

    def wait(self, stream: Any = None) -> None:
        begun = self._clock.mark(stream)
        self._inner.wait(stream)
        self._operation.waits.append((begun, self._clock.mark(stream)))


class Recorder:
    """Operations that are noted while `recording` is true, and the clock that times them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.operations: list[Posted] = []
        self.recording = False

    def read(self) -> list[Posted]:
        """All operations that have ended, with their marks as seconds."""
        at = self.clock.seconds
        return [
            Posted(
                record.name,
                record.nbytes,
                record.address,
                at(record.posted),
                at(record.begun),
                at(record.ended),
                [(at(begun), at(ended)) for begun, ended in record.waits],
                [m._replace(begun=at(m.begun), ended=at(m.ended)) for m in record.messages],
            )
            for record in self.operations
            if record.ended is not None
        ]


class Profile(Recorder):
    """Records the operations of a communicator, from now on, while `recording` is true.

    Operations are those of one caller, who posts them in one thread; they run in their
    order.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(self.make_clock(comm))
        self._queue: deque[Posted | None] = deque()
        self._depth = 0
        self._now: Posted | None = None
        self._outermost = comm
        self._on_stream = isinstance(comm, OnStream)
        self._waits = not (comm.background or self._on_stream)
        for part in composed(comm):
            part.recorder = self

    def make_clock(self, comm: Communicator) -> Clock:
        """The clock that times operations."""
        if not isinstance(comm, OnStream):
            return Clock()
        from cupy.cuda import get_elapsed_time

        return StreamClock(comm.stream, get_elapsed_time)

    def post(
        self, comm: Communicator, operation: Operation, array: Any, begin: Begin, stream: Any
    ) -> Handle:
        """Note when a caller posts an operation, and when it waits for it."""
        if comm is not self._outermost:  # a part of the operation that runs
            return begin()
        if not self.recording:
            self._queue.append(None)
            return begin()
        posted = self.clock.mark(stream)
        noted = Posted(operation, array.nbytes, address(array), posted)
        self.operations.append(noted)
        self._queue.append(noted)
        handle = begin()
        if self._waits:
            noted.waits.append((posted, self.clock.mark(stream)))
        return handle if handle is DONE else _Waited(handle, noted, self.clock)

    def carry(
        self,
        comm: Communicator,
        operation: Operation,
        array: Any,
        run: Callable[[], None],
        stream: Any = None,
    ) -> None:
        """Note when a communicator does its part: a message, where none inside has one."""
        if stream is not None and not self._on_stream:  # the host does not know when it runs
            run()
            return
        outermost = self._depth == 0
        if outermost:
            self._now = self._queue.popleft()
        noted = self._now
        carried = len(noted.messages) if noted else 0
        begun = self.clock.mark(stream) if noted else None
        self._depth += 1
        try:
            run()
        finally:
            self._depth -= 1
        if noted is None:
            return
        ended = self.clock.mark(stream)
        if len(noted.messages) == carried:
            how = comm.describe_algorithm(operation, array)
            message = Message(operation, how, comm.level, array.nbytes, begun, ended)
            noted.messages.append(message)
        if outermost:
            noted.begun, noted.ended = begun, ended


def composed(comm: Communicator) -> Iterator[Communicator]:
    """A communicator and those that it is composed of."""
    yield comm
    for part in comm.inside():
        yield from composed(part)


def address(array: Any) -> int:
    """The address of an array, in memory of the host or of a GPU."""
    pointer = getattr(array.data, "ptr", None)
    return int(array.ctypes.data if pointer is None else pointer)
