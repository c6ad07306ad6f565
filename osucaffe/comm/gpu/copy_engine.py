"""The communicator of ranks on one host whose GPUs' copy engines move the data.

SMs only add (`copy_engine.cu`) and are otherwise free for concurrent computation, unlike with
kernels that move data. Ranks synchronize by stream memory operations, and each pushes to one
other at a time: all push to different ones, and one engine fills the links (380 of their 450 GB/s
on H100s, by p2pBandwidthLatencyTest: https://github.com/NVIDIA/nccl/issues/1264). It is for arrays
that have the same address in every call, as weights and gradients do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..algorithms import Operation
from .ipc import Ipc
from .kernels import kernel, launch_over
from .on_stream import PRIORITY, OnStream
from .peers import FLAG_BYTES, Peers, exchange, require_flags

SMALL = 1 << 20
"""The bytes of the largest array that `ipc` moves instead: its kernel takes 2 to 12 us, meetings
and copies more. It waits for the others on SMs; but among large buckets only the last is so
small, and nothing is left to overlap with it."""
PIECES = 4
"""A piece is added while the next ones are still being copied: only the last is not hidden, but
each costs a synchronization."""
PIECE_BYTES = 8 << 20
"""The least bytes of a piece."""
BEGIN, END, ARRIVED = 0, 1, 2
"""The meetings of an operation: ARRIVED + i after piece i of what is to be added.

A flag is raised to 1, and set to 0 by whom it was raised for, when seen. It is not raised again
before that: between, all meet at another meeting, which each does after the last one. So an
operation can be replayed at any time, and after any other.

It cannot lock up, in whatever order a GPU takes what may run side by side: a rank waits after
raising its own flag of the meeting, and raises flags in the order of the operations, after
nothing that waits for a later one. Nor can several communicators, whatever queues of the GPU their
streams share, if all ranks enqueue their operations in one order.
"""
MEETINGS = ARRIVED + PIECES
_DEVICE_TO_DEVICE = 3
_VECTOR = 16
"""Bytes that a thread adds at a time: a multiple of the element size of every type."""


class CopyEngine(OnStream):
    """The ranks of an MPI communicator, all on one host, whose GPUs reach one another.

    An array that others write is mapped on first use and stays mapped: it is not for temporary
    arrays. UserError where memory cannot be mapped, or the driver is too old.
    """

    has_all_to_all = False

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.rank, comm.size)
        require_flags()
        self._runtime = self._cupy.cuda.runtime
        self._small = Ipc(comm)
        self._peers = Peers(comm)
        self._flags = self._peers.share(MEETINGS * comm.size * FLAG_BYTES)
        self._pitch, self._slots = 0, [0] * comm.size
        self._adding = self._cupy.cuda.Stream(non_blocking=True, priority=PRIORITY)
        self._arrays: dict[tuple[int, int], tuple[Any, list[int]]] = {}

    def enqueue(self, operation: Operation, array: Any, root: int, stream: Any) -> None:
        """Enqueue one of the collective operations on a stream."""
        if array.nbytes <= SMALL:
            self._small.launch(operation, array, root, stream)
            return
        there = [] if operation == Operation.REDUCE_SCATTER else self._find(array)
        if operation not in (Operation.BROADCAST, Operation.ALL_GATHER):
            self._reduce_scatter(array, stream)
        else:
            self._meet(BEGIN, stream)  # the others' targets are no longer in use
        if operation == Operation.BROADCAST:
            if self.rank == root:
                parts = {to: self.part(array.size, to) for to in range(self.size)}
                self._push(array, there, parts, stream)
            self._meet(ARRIVED, stream)
        if operation != Operation.REDUCE_SCATTER:
            readers = [root] if operation == Operation.REDUCE else range(self.size)
            part = self.part(array.size)
            self._push(array, there, dict.fromkeys(readers, part), stream)
            self._meet(END, stream)

    def inside(self) -> list[Ipc]:
        """What does small operations."""
        return [self._small]

    def _find(self, array: Any) -> list[int]:
        """The array's address on each rank. Its memory is not freed while it is cached."""
        key = array.data.ptr, array.nbytes
        if key not in self._arrays:
            self._arrays[key] = array, self._peers.addresses(array.data.ptr)
        return self._arrays[key][1]

    def _push(
        self, array: Any, there: list[int], ranges: dict[int, tuple[int, int]], stream: Any
    ) -> None:
        """Copy elements of the array to the same place on other ranks, each of which gets its
        range."""
        for to in self._others():
            if to in ranges:
                start, stop = (bound * array.itemsize for bound in ranges[to])
                self._copy(there[to] + start, array.data.ptr + start, stop - start, stream)

    def _reduce_scatter(self, array: Any, stream: Any) -> None:
        """Send each rank its part, piece by piece, and add what comes: all pieces but the last on
        another stream."""
        item, most = array.itemsize, -(-array.size // self.size)
        pieces = min(PIECES, max(1, most * item // PIECE_BYTES))
        step = -(-most // (pieces * _VECTOR)) * _VECTOR
        self._make_slots(pieces * step * item)
        parts = [self.part(array.size, rank) for rank in range(self.size)]
        self._meet(BEGIN, stream)  # the slots are free
        for index in range(pieces):
            offset = index * step
            for to in self._others():
                start, stop = _piece(parts[to], offset, step)
                source, nbytes = array.data.ptr + start * item, (stop - start) * item
                self._copy(self._slot(to, self.rank) + offset * item, source, nbytes, stream)
            adding = stream if index == pieces - 1 else self._adding
            self._meet(ARRIVED + index, stream, adding)
            start, stop = _piece(parts[self.rank], offset, step)
            self._add(array[start:stop], self._slot(self.rank) + offset * item, adding)
        if pieces > 1:
            self._follow(stream, self._adding)

    def _make_slots(self, pitch: int) -> None:
        """Let each rank have a slot of that many bytes for each of the others.

        What it had stays: CUDA graphs may have captured it. (So the first run of what is to be
        captured must not be captured.)
        """
        if self._pitch < pitch:
            self._pitch, self._slots = pitch, self._peers.share((self.size - 1) * pitch)

    def _slot(self, owner: int, writer: int | None = None) -> int:
        """The address of what one rank writes for another (None: where all that begins)."""
        index = 0 if writer is None else writer - (writer > owner)
        return self._slots[owner] + index * self._pitch

    def _add(self, array: Any, slots: int, stream: Any) -> None:
        if array.size:
            vectors = -(-array.nbytes // _VECTOR)
            function = kernel("copy_engine", "add", array.dtype.name, PEERS=self.size - 1)
            arguments = array, np.int64(array.size), np.uint64(slots), np.int64(self._pitch)
            launch_over(function, vectors, arguments, stream, per_sm=1)

    def _meet(self, meeting: int, stream: Any, waiter: Any = None) -> None:
        """Tell the others that what was enqueued before has been done here; wait for them (on
        another stream, if one is given: this one goes on)."""
        others = self._others()
        raised = [self._flag(to, meeting, self.rank) for to in others]
        awaited = [self._flag(self.rank, meeting, other) for other in others]
        if waiter in (None, stream):
            exchange(stream, raised, awaited)
        else:
            exchange(stream, raised, [])
            self._follow(waiter, stream)
            exchange(waiter, [], awaited)

    def _flag(self, owner: int, meeting: int, writer: int) -> int:
        return self._flags[owner] + (meeting * self.size + writer) * FLAG_BYTES

    def _others(self) -> list[int]:
        """The other ranks. No two ranks begin with the same one."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def _copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        if nbytes > 0:
            self._runtime.memcpyAsync(to, source, nbytes, _DEVICE_TO_DEVICE, stream.ptr)

    def close(self) -> None:
        """Unmap the others' memory and give back this rank's. All ranks call it together."""
        super().close()
        self._small.close()
        self._peers.close()
        self._arrays.clear()


def _piece(part: tuple[int, int], offset: int, most: int) -> tuple[int, int]:
    """The part of a range from an offset on, of at most `most` elements."""
    start = min(part[0] + offset, part[1])
    return start, min(start + most, part[1])
