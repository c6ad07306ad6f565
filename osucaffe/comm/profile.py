"""Owns the profile of a communicator: its operations, when they ran, and how long callers waited.

A profile wraps the methods of the communicators that it is given: others have no
overhead. Times are seconds of `time.perf_counter`, those of a GPU's streams, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from .communicator import DONE, Communicator, Handle
from .gpu.on_stream import OnStream

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
class Operation:
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

    def __init__(self, inner: Handle, operation: Operation, clock: Clock) -> None:
        self._inner, self._operation, self._clock = inner, operation, clock

    def wait(self, stream: Any = None) -> None:
        begun = self._clock.mark(stream)
        self._inner.wait(stream)
        self._operation.waits.append((begun, self._clock.mark(stream)))


class Recorder:
    """Operations that are noted while `recording` is true, and the clock that times them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.operations: list[Operation] = []
        self.recording = False

    def read(self) -> list[Operation]:
        """All operations that have ended, with their marks as seconds."""
        at = self.clock.seconds
        return [
            Operation(
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
        self._queue: deque[Operation | None] = deque()
        self._depth = 0
        self._now: Operation | None = None
        self._on_stream = isinstance(comm, OnStream)
        self._waits = not (comm.background or self._on_stream)
        self._begin_inside = comm._begin
        # Methods of these objects, not of their classes: mypy takes no assignment to a method.
        setattr(comm, "_begin", self._begin)  # noqa: B010
        method = "enqueue" if self._on_stream else "run"
        for part in composed(comm):
            setattr(part, method, partial(self._carry, part, getattr(part, method)))

    def make_clock(self, comm: Communicator) -> Clock:
        """The clock that times operations."""
        if not isinstance(comm, OnStream):
            return Clock()
        from cupy.cuda import get_elapsed_time

        return StreamClock(comm.stream, get_elapsed_time)

    def _begin(self, name: str, array: Any, root: int, stream: Any) -> Handle:
        """Replaces the communicator's."""
        if not self.recording:
            self._queue.append(None)
            return self._begin_inside(name, array, root, stream)
        posted = self.clock.mark(stream)
        operation = Operation(name, array.nbytes, address(array), posted)
        self.operations.append(operation)
        self._queue.append(operation)
        handle = self._begin_inside(name, array, root, stream)
        if self._waits:
            operation.waits.append((posted, self.clock.mark(stream)))
        return handle if handle is DONE else _Waited(handle, operation, self.clock)

    def _carry(
        self,
        comm: Communicator,
        carry: Callable[..., None],
        name: str,
        array: Any,
        root: int = 0,
        stream: Any = None,
    ) -> None:
        """Replaces `run`, or `enqueue`, of each inner communicator."""
        outermost = self._depth == 0
        if outermost:
            self._now = self._queue.popleft()
        arguments = (stream,) if self._on_stream else ()
        operation = self._now
        if operation is None:
            self._nest(carry, name, array, root, *arguments)
            return
        carried = len(operation.messages)
        begun = self.clock.mark(stream)
        self._nest(carry, name, array, root, *arguments)
        ended = self.clock.mark(stream)
        if len(operation.messages) == carried:  # no inner communicator carried it out
            how = comm.describe_algorithm(name, array)
            operation.messages.append(Message(name, how, comm.level, array.nbytes, begun, ended))
        if outermost:
            operation.begun, operation.ended = begun, ended

    def _nest(self, carry: Callable[..., None], *arguments: Any) -> None:
        self._depth += 1
        try:
            carry(*arguments)
        finally:
            self._depth -= 1


def composed(comm: Communicator) -> Iterator[Communicator]:
    """A communicator and those that it is composed of."""
    yield comm
    for part in comm.inside():
        yield from composed(part)


def address(array: Any) -> int:
    """The address of an array, in memory of the host or of a GPU."""
    pointer = getattr(array.data, "ptr", None)
    return int(array.ctypes.data if pointer is None else pointer)
