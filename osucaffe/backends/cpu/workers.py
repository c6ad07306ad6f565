"""Owns the threads of the CPU backend's memory-bound steps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

SMALL = 1 << 17
"""Elements below which a second thread costs more than it brings."""


class Workers:
    """A pool of threads, of which the caller is the first.

    NumPy releases the interpreter lock inside a ufunc, so chunks of several threads overlap.
    """

    def __init__(self, count: int) -> None:
        self.count = max(1, count)
        self._pool = ThreadPoolExecutor(self.count - 1) if self.count > 1 else None

    def ranges(self, elements: int) -> list[tuple[int, int]]:
        """Cut elements into one range a worker; a single one when there are few."""
        parts = self.count if elements >= SMALL else 1
        edges = [elements * part // parts for part in range(parts + 1)]
        return list(zip(edges[:-1], edges[1:], strict=True))

    def run(self, tasks: list[Callable[[], None]]) -> None:
        """Run the tasks at once, and wait for all of them; the first error is raised."""
        others: list[Future[None]] = []
        if self._pool is not None:
            others = [self._pool.submit(task) for task in tasks[1:]]
            tasks = tasks[:1]
        for task in tasks:
            task()
        for other in others:
            other.result()
