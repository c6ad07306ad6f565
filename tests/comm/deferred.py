"""A stand-in for CuPy whose streams run nothing until somebody asks: an event whether it is done,
or a stream to synchronize. So what lacks an event is found, whatever the threads do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

_LOCK = threading.RLock()
allocated: list[int] = []
"""Bytes of each allocation of pinned memory."""


class Stream:
    """What was enqueued runs in its order."""

    def __init__(self, **options: Any) -> None:
        self.todo: list[Callable[[], None]] = []
        self.ran = 0

    def enqueue(self, work: Callable[[], None]) -> None:
        with _LOCK:
            self.todo.append(work)

    def run(self, upto: int | None = None) -> None:
        with _LOCK:
            while self.ran < (len(self.todo) if upto is None else upto):
                self.ran += 1
                self.todo[self.ran - 1]()

    synchronize = run

    def wait_event(self, event: Event) -> None:
        self.enqueue(event.mark())


class Event:
    """Of a place in a stream; asked for the first time it is not done."""

    def __init__(self, **options: Any) -> None:
        self.place: tuple[Stream, int] | None = None
        self.asked = False

    def record(self, stream: Stream) -> None:
        with _LOCK:
            self.place, self.asked = (stream, len(stream.todo)), False

    def mark(self) -> Callable[[], None]:
        place = self.place
        return lambda: place[0].run(place[1]) if place else None

    @property
    def done(self) -> bool:
        if not self.asked:
            self.asked = True
            return False
        self.mark()()
        return True


class Array:
    """A flat array of the device's."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values
        self.nbytes, self.size, self.dtype = values.nbytes, values.size, values.dtype

    def __getitem__(self, part: slice) -> Array:
        return Array(self.values[part])

    def get(
        self, stream: Stream | None = None, out: np.ndarray | None = None, blocking: bool = True
    ) -> np.ndarray | None:
        if stream is None or out is None:
            return self.values.copy()
        assert not blocking
        stream.enqueue(lambda: np.copyto(out, self.values))
        return None

    def set(self, values: np.ndarray, stream: Stream | None = None) -> None:
        if stream is None:
            self.values[:] = values
        else:
            stream.enqueue(lambda: np.copyto(self.values, values))


def _pinned(nbytes: int) -> bytearray:
    allocated.append(nbytes)
    return bytearray(nbytes)


cuda = SimpleNamespace(
    Stream=Stream,
    Event=Event,
    Device=lambda: SimpleNamespace(use=lambda: None),
    alloc_pinned_memory=_pinned,
)
