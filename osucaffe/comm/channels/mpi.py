"""Owns the channel over MPI's send and receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .channel import Channel


class MpiChannel(Channel):
    """Messages over a communicator of MPI, which is duplicated: they never mix with others."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        super().__init__(comm.rank, comm.size)
        self._mpi = mpi
        self._comm = comm.Dup()

    def send(self, arrays: Sequence[np.ndarray], to: int, tag: int) -> Any:
        return self._begin(self._comm.Isend, arrays, to, tag)

    def receive(self, arrays: Sequence[np.ndarray], source: int, tag: int) -> Any:
        return self._begin(self._comm.Irecv, arrays, source, tag)

    def _begin(self, call: Any, arrays: Sequence[np.ndarray], rank: int, tag: int) -> Any:
        if len(arrays) == 1:
            return call([arrays[0].view(np.uint8), self._mpi.BYTE], rank, tag)
        lengths = [each.nbytes for each in arrays]
        places = [each.ctypes.data for each in arrays]
        together = self._mpi.BYTE.Create_hindexed(lengths, places).Commit()
        request = call([self._mpi.BOTTOM, 1, together], rank, tag)
        together.Free()  # MPI keeps it as long as it needs
        return request

    def complete(self, requests: Sequence[Any]) -> list[int]:
        return self._mpi.Request.Testsome(list(requests)) or []

    def close(self) -> None:
        self._comm.Free()
