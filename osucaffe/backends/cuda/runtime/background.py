"""Owns the threads that compile kernels and build plans while the device times what is ready."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

MOST_THREADS = 16
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


@functools.cache
def pool() -> ThreadPoolExecutor:
    """A thread for each core that this process may use, but for one."""
    threads = max(1, min(len(os.sched_getaffinity(0)) - 1, MOST_THREADS))
    return ThreadPoolExecutor(threads, thread_name_prefix="build")
