"""The threads of the CPU backend's memory-bound steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise

SMALL = 1 << 17
"""Elements below which a second thread costs more than it brings."""


def cut(length: int, parts: int) -> list[tuple[int, int]]:
    """range(length) in so many ranges (start, stop) of almost equal lengths."""
    return list(pairwise(length * part // parts for part in range(parts + 1)))


class Workers:
    """A pool of threads, of which the caller is the first.

    NumPy releases the interpreter lock inside a ufunc, so chunks of several threads overlap.
    alone: the caller is to run all tasks, one after the other.
    """

    def __init__(self, count: int) -> None:
        self.count = max(1, count)
        self.alone = False
        self._pool = ThreadPoolExecutor(self.count - 1) if self.count > 1 else None

    def ranges(self, elements: int) -> list[tuple[int, int]]:
        """Cut elements into one range a worker; a single one when there are few."""
        return cut(elements, self.count if elements >= SMALL else 1)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run the tasks at once, and wait for all of them; the first error is raised."""
        others: list[Future[None]] = []
        if self._pool is not None and not self.alone:
            others = [self._pool.submit(task) for task in tasks[1:]]
            tasks = tasks[:1]
        for task in tasks:
            task()
        for other in others:
            other.result()
