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

    def send(self, array: np.ndarray, to: int, tag: int) -> Any:
        return self._comm.Isend([array.view(np.uint8), self._mpi.BYTE], to, tag)

    def receive(self, array: np.ndarray, source: int, tag: int) -> Any:
        return self._comm.Irecv([array.view(np.uint8), self._mpi.BYTE], source, tag)

    def complete(self, requests: Sequence[Any]) -> list[int]:
        return self._mpi.Request.Testsome(list(requests)) or []

    def close(self) -> None:
        self._comm.Free()
