"""Owns the thread that writes snapshots while training goes on: one at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class SnapshotWriter:
    """Runs what writes a snapshot beside training. What it raises, the trainer's next call does."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._written: Callable[[], None] = lambda: None

    def start(self, write: Callable[[], None], written: Callable[[], None]) -> None:
        """Begin to write, once the snapshot before is; `written` is called by the trainer's own
        thread, in the first `look` or `wait` after it."""
        self.wait()
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="osucaffe-snapshot")
        self._written = written
        self._writing = self._thread.submit(write)

    def look(self) -> None:
        """End what has been written meanwhile. Raises what stopped it."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written. Raises what stopped it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
            self._written()
