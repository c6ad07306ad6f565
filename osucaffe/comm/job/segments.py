"""Owns the cleanup of shared memory: a job leaves none behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import re

_NAMED = re.compile(r"(/dev/shm/mpich_shm_\S+)$", re.MULTILINE)


def unlink_segments() -> None:
    """Take away the names of the memory that MPICH shares among the ranks of a host.

    It does that itself when it ends, but not where a rank is killed or the job aborted: 1 MB a rank
    would stay until the machine starts anew. The memory remains as long as a process has it, and
    only MPI_Init looks for it by its name: so all ranks must have left that.
    """
    with contextlib.suppress(OSError):  # where there is no /proc
        with open("/proc/self/maps") as file:
            names = set(_NAMED.findall(file.read()))
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another rank was faster
                os.unlink(name)
