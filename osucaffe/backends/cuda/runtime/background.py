"""The threads that compile kernels and build plans while the device times what is ready."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_THREADS = 16
"""Each compiles one file at a time, which takes some 100 MB."""
SWITCH_SECONDS = 2e-4
"""In place of Python's 5 ms: a thread that comes back from a library waits so long for the
interpreter's lock, and building one plan takes some hundred calls."""


@contextmanager
def shared_interpreter() -> Iterator[None]:
    """Let threads take turns quickly meanwhile."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Task(Generic[T]):
    """Work that is done once, by whoever comes first: a thread in the background, or who asks for
    the result. So what is needed now does not wait behind what will be needed later."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._claim = threading.Lock()
        self._future: Future[T] = Future()

    def run(self) -> None:
        """Do it, unless somebody does or did."""
        if self._claim.acquire(blocking=False):
            try:
                self._future.set_result(self._work())
            except BaseException as error:
                self._future.set_exception(error)

    def result(self) -> T:
        """What it gave, or raises what it raised."""
        self.run()
        return self._future.result()


def begin(work: Callable[[], T]) -> Task[T]:
    """Let a thread do this as soon as one is free."""
    task = Task(work)
    _pool().submit(task.run)
    return task


@functools.cache
def _pool() -> ThreadPoolExecutor:
    """A thread for each core that this process may use, but for one."""
    threads = max(1, min(len(os.sched_getaffinity(0)) - 1, MAX_THREADS))
    return ThreadPoolExecutor(threads, thread_name_prefix="build")
