"""Uploads to a backend's memory ahead of what reads it; the base class is for host memory."""

from __future__ import annotations

import contextlib
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np

from .tensor import Run, Shape, Tensor

Mark = Any
"""What was enqueued when it was made, for `Uploads.send`."""


class Uploads:
    """Copies from the host's memory to row-major tensors, overlapped with computation.

    This is a backend's whose steps have run when they return: each copy is made at once.
    """

    def free_bytes(self) -> int:
        """The bytes that can still be allocated."""
        return available_memory()

    def memory(self, shape: Shape, dtype: str) -> np.ndarray:
        """Memory of the host's for what is to be sent: copies from it run without the host."""
        return np.empty(shape, dtype)

    def pin(self, memory: np.ndarray) -> None:
        """Let copies from this memory, which begins with a page, run without the host from now on,
        if they do not yet."""

    def mark(self) -> Mark:
        """What has been enqueued by now."""
        return None

    def send(self, rows: np.ndarray, tensor: Tensor, first: int = 0, after: Mark = None) -> Run:
        """Begin to copy rows (each row-major, of the tensor's type) to tensor[first:], after what
        is after it, and after what was sent before. Returns what waits until rows may change."""
        tensor.array[first : first + len(rows)] = rows
        return lambda: None

    def wait(self) -> None:
        """Let what follows wait for all that was sent."""


def pages(nbytes: int) -> mmap.mmap:
    """Zeros that share no page with others, so that a GPU can pin them: huge pages if there are
    enough, which streams of writes are faster to (7 % for 20 MB)."""
    nbytes = max(1, nbytes)
    if sys.platform != "linux":
        return mmap.mmap(-1, nbytes)
    # Private: the system has huge pages for such memory only.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def available_memory() -> int:
    """The bytes of the host's memory that this process may still take, about."""
    free = _number("/proc/meminfo", "MemAvailable:", 1 << 10)
    limit = _number("/sys/fs/cgroup/memory.max")
    used = _number("/sys/fs/cgroup/memory.current")
    bounds = [free, limit - used if limit is not None and used is not None else None]
    return max(0, min((bound for bound in bounds if bound is not None), default=1 << 30))


def _number(file: str, name: str = "", unit: int = 1) -> int | None:
    """The number after a name (or the first) in a file of the system's; None where none is."""
    try:
        words = Path(file).read_text().split()
        return int(words[words.index(name) + 1 if name else 0]) * unit
    except (OSError, ValueError, IndexError):
        return None
