"""Owns the channel over MPI's send and receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .channel import Channel


class MpiChannel(Channel):
    """Messages over a communicator of MPI, which is duplicated: they never mix with others."""

    def __init__(self, mpi: Any, comm: Any, *, busy: bool = False) -> None:
        super().__init__(comm.rank, comm.size, busy=busy)
        self._mpi = mpi
        self._comm = comm.Dup()

    def send(self, arrays: Sequence[np.ndarray], to: int, tag: int) -> Any:
        return self._begin(self._comm.Isend, arrays, to, tag)

    def receive(self, arrays: Sequence[np.ndarray], source: int, tag: int) -> Any:
        return self._begin(self._comm.Irecv, arrays, source, tag)

    def _begin(self, call: Any, arrays: Sequence[np.ndarray], rank: int, tag: int) -> Any:
        """One message of MPI's for each array: a type that gathers them is slower by far."""
        return [call([each.view(np.uint8), self._mpi.BYTE], rank, tag) for each in arrays]

    def complete(self, requests: Sequence[Any]) -> list[int]:
        test = self._mpi.Request.Testall
        return [index for index, several in enumerate(requests) if test(several)]

    def close(self) -> None:
        self._comm.Free()
