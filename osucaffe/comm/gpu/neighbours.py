"""Owns what ranks of one host, each with a GPU of its own, give one another for their records."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import UserError
from .peers import Peers

if TYPE_CHECKING:
    from ..job.job import MpiJob


class HostRanks:
    """The ranks of a job as `data.spread.Neighbours`."""

    def __init__(self, job: MpiJob) -> None:
        self.rank, self.size = job.rank, job.size
        self.gather: Callable[[Any], list[Any]] = job.gather
        self._comm = job.world.Dup()
        self._shared: list[Peers] = []

    def share(self, nbytes: int) -> list[int]:
        """The addresses of so much memory of each GPU's, until the process ends; none where it
        cannot be had, or mapped. All ranks call it together."""
        peers = Peers(self._comm)  # of its own: closing it unmaps all that it shares
        try:
            addresses = peers.share(nbytes)
        except UserError:  # on all ranks alike
            return []
        self._shared.append(peers)
        return addresses

    def share_host(self, nbytes: int) -> np.ndarray | None:
        """Zeros (uint8) that are the same memory for all ranks, of no file system; None where that
        cannot be had. All ranks call it together."""
        file, path, memory = -1, "", None
        with contextlib.suppress(AttributeError, OSError):
            if not self.rank:
                file = os.memfd_create("osucaffe-shared")
                os.ftruncate(file, nbytes)
                path = f"/proc/{os.getpid()}/fd/{file}"
        path = self.gather(path)[0]
        with contextlib.suppress(OSError, ValueError):
            opened = os.open(path, os.O_RDWR)
            memory = np.frombuffer(mmap.mmap(opened, nbytes), np.uint8)
            os.close(opened)
        there = all(self.gather(memory is not None))  # only now rank 0 may close it
        if file >= 0:
            os.close(file)
        return memory if there else None
