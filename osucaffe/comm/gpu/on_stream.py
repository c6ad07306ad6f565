"""Communicators whose operations are enqueued on a CUDA stream: the host never waits."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

from ...trace import running
from ..algorithms import Operation
from ..communicator import Communicator, Handle, describe

PRIORITY = -5
"""Of the streams of communicators: the greatest that CUDA knows."""


class _Enqueued(Handle):
    """`wait` makes a stream wait (by default the caller's); the host goes on."""

    def __init__(self, done: Any, stream: Any) -> None:
        self._done, self._stream = done, stream

    def wait(self, stream: Any = None) -> None:
        (stream or self._stream).wait_event(self._done)


class OnStream(Communicator):
    """Runs operations in order on a dedicated stream, concurrently with computation.

    All of it can be captured in a CUDA graph: the stream is forked off and joined by events.
    """

    def __init__(self, rank: int, size: int, *, level: str = "gpu") -> None:
        super().__init__(rank, size, level=level)
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        # With priority: a few blocks that move data must not queue behind those that compute.
        self.stream = cupy.cuda.Stream(non_blocking=True, priority=PRIORITY)

    @abstractmethod
    def enqueue(self, operation: Operation, array: Any, root: int, stream: Any) -> None:
        """Enqueue one of the collective operations on a stream."""

    def launch(self, operation: Operation, array: Any, root: int, stream: Any) -> None:
        """`enqueue`, which a recorder times."""
        enqueue = partial(self.enqueue, operation, array, root, stream)
        if self.recorder is None:
            enqueue()
        else:
            self.recorder.carry(self, operation, array, enqueue, stream)

    def run(self, operation: Operation, array: Any, root: int = 0) -> None:
        """Do one of the collective operations now; the array must be ready."""
        self._device.use()  # this may be another thread than the one that made it
        self.enqueue(operation, array, root, self.stream)
        self.stream.synchronize()

    def close(self) -> None:
        """Wait for what is under way."""
        self.stream.synchronize()
        super().close()

    def _follow(self, stream: Any, before: Any) -> None:
        """Let a stream wait for what has been enqueued on another (None: the current one)."""
        done = self._cupy.cuda.Event(disable_timing=True)
        done.record(before)
        stream.wait_event(done)

    def _begin(self, operation: Operation, array: Any, root: int, stream: Any) -> Handle:
        trace = running()
        self._follow(self.stream, stream)
        begun = self.stream.record() if trace else None
        self.launch(operation, array, root, self.stream)
        done = self._cupy.cuda.Event(disable_timing=not trace)
        done.record(self.stream)
        if trace:
            trace.enqueue(describe(operation, array), begun, done)
        return _Enqueued(done, stream)
