"""Traces: named spans of time on host and device, in the form of Chrome's trace viewer.

`span` is for any part of the package: while nothing is traced it does nothing. While something is,
the spans of the thread that traces are NVTX ranges too, where CuPy or nvtx is installed, so that
NVIDIA's profilers show them. Open a trace in chrome://tracing or https://ui.perfetto.dev.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .files import write_bytes

_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()
_running: Trace | None = None


def span(name: str, category: str) -> AbstractContextManager[None]:
    """A span of the trace that is running, if one is."""
    return _NOTHING if _running is None else _running.span(name, category)


def running() -> Trace | None:
    """The trace that is running, if one is."""
    return _running


class Trace:
    """Collects spans while it runs (`with trace.running():`), and writes them.

    path: of the JSON file. process: a number for this process among those of a job.
    UserError where the file cannot be written.
    """

    def __init__(self, path: str | Path, process: int = 0) -> None:
        self.path = Path(path)
        self._process = process
        self._events: list[dict[str, Any]] = []
        self._tracks: dict[str, int] = {}
        self._enqueued: list[tuple[str, Any, Any]] = []
        self._push, self._pop = _find_nvtx()
        self._thread = threading.get_ident()
        write_bytes(self.path, b"[]")

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let `span` of this module belong to this trace meanwhile."""
        global _running
        before, _running = _running, self
        try:
            yield
        finally:
            _running = before

    @contextlib.contextmanager
    def span(self, name: str, category: str) -> Iterator[None]:
        """A span on the track of this thread."""
        own = threading.get_ident() == self._thread
        if own:
            self._push(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            if own:
                self._pop()
            track = "host" if own else threading.current_thread().name
            self.add(name, category, start, end, track)

    def add(self, name: str, category: str, start: float, end: float, track: str) -> None:
        """A span from start to end, in seconds of `time.perf_counter`, on a named track."""
        number = self._tracks.setdefault(track, len(self._tracks))
        self._events.append({
            "name": name, "cat": category, "ph": "X", "ts": start * 1e6, "dur": (end - start) * 1e6,
            "pid": self._process, "tid": number,
        })  # fmt: skip

    def enqueue(self, name: str, start: Any, end: Any) -> None:
        """A communication between two events of a device, whose times `read_events` will find."""
        self._enqueued.append((name, start, end))

    def read_events(self, time_of: Callable[[Any], float]) -> None:
        """Add the spans that were enqueued. time_of: waits for an event, gives its time."""
        for name, start, end in self._enqueued:
            self.add(name, "communication", time_of(start), time_of(end), "communication")
        self._enqueued.clear()

    def write(self) -> None:
        """Write the file: events by time, and the names of the tracks."""
        named = [
            {"name": "thread_name", "ph": "M", "pid": self._process, "tid": number,
             "args": {"name": track}}
            for track, number in self._tracks.items()
        ]  # fmt: skip
        process = {
            "name": "process_name", "ph": "M", "pid": self._process,
            "args": {"name": f"osucaffe, rank {self._process}, process {os.getpid()}"},
        }  # fmt: skip
        first = min((event["ts"] for event in self._events), default=0.0)
        events = [event | {"ts": event["ts"] - first} for event in self._events]
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        content = {"displayTimeUnit": "ms", "traceEvents": [process, *named, *events]}
        write_bytes(self.path, json.dumps(content, indent=0).encode())


def _find_nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """What begins and ends an NVTX range, by CuPy or else nvtx; nothing where neither is there."""
    for module, push, pop in (
        ("cupy.cuda.nvtx", "RangePush", "RangePop"),
        ("nvtx", "push_range", "pop_range"),
    ):
        try:
            found = importlib.import_module(module)
            return getattr(found, push), getattr(found, pop)
        except (ImportError, AttributeError):
            continue
    return lambda name: None, lambda: None
