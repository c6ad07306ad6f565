"""Records that are divided among the devices of a host's ranks, each of which reads all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ...backends.backend import Backend
from ...backends.tensor import Run, Tensor
from ..streams.order import consecutive
from .memory_limit import log_refusal, log_stay
from .slots import SHARE_LEFT, Form, RecordSlots


class Neighbours(Protocol):
    """The ranks of a job, all on one host, each with a device whose memory the others can reach."""

    rank: int
    size: int

    def gather(self, value: Any) -> list[Any]:
        """Each rank's value. All ranks call it together."""

    def share(self, nbytes: int) -> list[int]:
        """The addresses of memory of this size on each device, for all to read and write; none if
        it cannot be allocated. All ranks call it together."""

    def share_host(self, nbytes: int) -> np.ndarray | None:
        """Zeros (uint8) in host memory that all share; None if it cannot be
        allocated. All ranks call it together."""


class ShardedSlots(RecordSlots):
    """Slots for records among ranks: number n is in slot n // ranks of rank n % ranks.

    Each rank sends the records it reads to their slots, and notifies the others by shared host
    memory. So a record is read by one of the ranks, or now and then by two.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        backend: Backend,
        forms: Sequence[Form],
        count: int,
        batch: int,
        **options: Any,
    ) -> None:
        super().__init__(backend, forms, count, batch, **options)
        [(shape, dtype)] = forms
        ranks = neighbours.size
        self._neighbours = neighbours
        self._shards = [Tensor((-(-count // ranks), *shape), dtype, "cache") for _ in range(ranks)]
        self.parts = [self._shards[neighbours.rank]]
        self._batches = [Tensor((2 * batch, *shape), dtype, "cache")]
        self.table = Tensor((ranks,), "int64", "cache.addresses", persistent=True)
        self._pending: list[tuple[Run, np.ndarray]] = []
        self._addresses: list[int] = []

    @property
    def tensors(self) -> list[Tensor]:
        assert self.table
        return [*self.parts, self.table]

    @property
    def batches(self) -> list[Tensor]:
        return self._batches

    def split(self, ranks: int) -> None:
        """Allocate the memory: all ranks are certain to call this."""
        size, free = self._backend.nbytes(self.parts[0]), self.uploads.free_bytes()
        self._backend.synchronize()
        flags = None
        if all(self._neighbours.gather(size <= free * SHARE_LEFT)):
            flags = self._neighbours.share_host(self.count * 5)
        if flags is not None:
            self._addresses = self._neighbours.share(size)
        if flags is None or not self._addresses:
            log_refusal(self._title, size, free)
            return
        if self.labels is not None:
            self.labels = flags[: self.count * 4].view(np.int32)
        self.has = flags[self.count * 4 :].view(bool)
        log_stay(self._title, self.count, size, free, f", divided among {ranks} GPUs, on each")

    def take(self) -> bool:
        assert self.table
        self._backend.allocate_for(self.table)
        if not self._addresses:
            self.refuse()
            return False
        for part, address in zip(self._shards, self._addresses, strict=True):
            self._backend.place(
                part, self._backend.memory_at(address, self._backend.nbytes(part)), 0
            )
        self._write_table(self._addresses)
        return True

    def refuse(self) -> None:
        self._allocate_batches(self._batches)
        self._write_table([self._batches[0].address] * len(self._shards))

    def put(
        self, numbers: np.ndarray, at: np.ndarray, parts: Sequence[Any], labels: np.ndarray | None
    ) -> None:
        ranks = len(self._shards)
        if self.labels is not None and labels is not None:
            self.labels[numbers] = labels[at]
        for rank, part in enumerate(self._shards):
            chosen = numbers % ranks == rank
            rows, slots = numbers[chosen] // ranks, at[chosen]
            for run in consecutive(rows, slots, step=ranks):
                first, last = slots[run][[0, -1]].tolist()
                array = parts[0][first : last + 1 : ranks]
                self._sent = self.uploads.send(array, part, int(rows[run.start]))
        if self._sent and len(numbers):
            self._pending.append((self._sent, numbers))

    def lacking(self) -> int:
        while self._pending:  # sent a batch ago: they are there by now, or soon
            arrived, numbers = self._pending.pop()
            arrived()
            self.has[numbers] = True
        return super().lacking()

    def rows_of(self, slots: np.ndarray) -> np.ndarray:
        return slots * len(self._shards)

    def _write_table(self, addresses: Sequence[int]) -> None:
        """Write the addresses of the memories."""
        assert self.table
        table = self.uploads.memory(self.table.shape, "int64")
        table[:] = addresses
        self.uploads.send(table, self.table, after=self.uploads.mark())()
        self.uploads.wait()
