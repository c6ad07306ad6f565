"""Owns a subset of a job's ranks that are a job among themselves, and end with the whole one."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from .job import FAULT, MpiJob


class Subset(MpiJob):
    """The ranks of an MPI communicator that was split from the job's.

    lag: `agree` answers what was wished so many calls ago, so that no rank is held up until it is
    as many calls ahead of another.
    """

    def __init__(self, whole: MpiJob, comm: Any, *, lag: int = 1) -> None:
        self._whole = whole
        self.mpi = whole.mpi
        self.world = comm
        self.rank, self.size = comm.rank, comm.size
        self.watchdog = whole.watchdog
        self._control = comm.Dup()
        self._wish = None
        self._lag = lag
        self._wishes: deque[tuple[Any, np.ndarray, np.ndarray]] = deque()

    @property
    def name(self) -> str:
        return self._whole.name

    def agree(self, wish: int) -> int:
        answer = self._answer() if len(self._wishes) == self._lag else 0
        given, got = np.full(1, wish, np.int32), np.zeros(1, np.int32)
        request = self._control.Iallreduce(given, got, self.mpi.MAX)
        self._wishes.append((request, given, got))
        return answer

    def _answer(self) -> int:
        request, _, got = self._wishes.popleft()
        with self.watch("all ranks to end an iteration"):
            request.Wait()
        return int(got[0])

    def abort(self, message: str, code: int = FAULT) -> None:
        self._whole.abort(message, code)

    def close(self) -> None:
        """All ranks of it call it together."""
        while self._wishes:
            self._answer()
        self._control.Free()
