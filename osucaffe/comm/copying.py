"""Owns the communicator of ranks on one host whose GPUs' copy engines move the data.

Multiprocessors only add: what computes beside it keeps them, which no kernel that moves data can
say of itself. Its kernel is `copying.cu`. It is for large arrays that lie at the same place in
every call, as weights and gradients do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .algorithms import part
from .driver import take
from .kernels import kernel, launch
from .on_stream import OnStream
from .peers import Peers

BEGIN, MIDDLE, END = range(3)
"""The meetings of an operation. All of a rank's flags of a meeting are 0 again when it has gone on,
and before one that it has met may raise a flag of the same meeting again, they meet at another."""
MOST_RANKS = 32
WORD = 4
FLAG_BYTES = 3 * MOST_RANKS * WORD
BLOCKS, THREADS = 132, 512
_DEVICE_TO_DEVICE = 3


class _Place(NamedTuple):
    """Where an array lies on each rank, and the slots that its parts arrive in to be added: on
    each rank one for each of the others, `pitch` bytes apart."""

    array: Any
    there: list[int]
    memory: Any
    slots: list[int]
    pitch: int


class Copying(OnStream):
    """The ranks of an MPI communicator, all on one host, whose GPUs reach one another.

    An array is mapped by the others when it is first seen, and kept from then on: arrays that come
    and go are not for it. UserError where memory cannot be mapped.
    """

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.rank, comm.size)
        self._world = comm
        self._runtime = self._cupy.cuda.runtime
        self._peers = Peers(comm)
        self._own = self._allocate(FLAG_BYTES)
        self._flags = self._peers.addresses(self._own)
        self._one = self._cupy.ones(1, np.uint32)
        self._places: dict[tuple[int, int], _Place] = {}
        self._runtime.deviceSynchronize()
        comm.Barrier()

    def _allocate(self, nbytes: int) -> int:
        """Zeros that belong to no pool, which keeps what it gives in pieces of one allocation."""
        pointer: int = self._runtime.malloc(nbytes)
        self._runtime.memset(pointer, 0, nbytes)
        self._runtime.deviceSynchronize()
        return pointer

    def enqueue(self, operation: str, array: Any, root: int, stream: Any) -> None:
        """Enqueue one of the collective operations on a stream."""
        adds = operation in ("reduce_scatter", "reduce", "all_reduce")
        place, own = self._find(array, adds=adds), part(array.size, self.size, self.rank)
        # From here on nobody reads or writes any more what others write now.
        self._meet(BEGIN, stream)
        if adds:
            self._reduce_scatter(place, stream)
        if operation == "broadcast":
            if self.rank == root:
                parts = {to: part(array.size, self.size, to) for to in range(self.size)}
                self._push(place, parts, stream)
            self._meet(MIDDLE, stream)
        if operation != "reduce_scatter":
            readers = [root] if operation == "reduce" else range(self.size)
            self._push(place, dict.fromkeys(readers, own), stream)
            self._meet(END, stream)

    def _find(self, array: Any, *, adds: bool) -> _Place:
        """Where the array lies. Its memory is not given back while it is known."""
        key = array.data.ptr, array.nbytes
        place = self._places.get(key)
        if place is None:
            place = _Place(array, self._peers.addresses(array.data.ptr), None, [], 0)
        if adds and place.memory is None:
            pitch = -(-array.size // self.size) * array.itemsize
            pitch = -(-pitch // 16) * 16
            memory = self._cupy.empty((self.size - 1) * pitch, np.uint8)
            slots = self._peers.addresses(memory.data.ptr)
            place = place._replace(memory=memory, slots=slots, pitch=pitch)
        self._places[key] = place
        return place

    def _push(self, place: _Place, ranges: dict[int, tuple[int, int]], stream: Any) -> None:
        """Copy elements of the array to the same place on other ranks, each of which gets its
        range."""
        itemsize, pointer = place.array.itemsize, place.array.data.ptr
        for to in self._others():
            if to in ranges:
                start, stop = (each * itemsize for each in ranges[to])
                self._copy(place.there[to] + start, pointer + start, stop - start, stream)

    def _reduce_scatter(self, place: _Place, stream: Any) -> None:
        """Send each rank its part, and add what comes."""
        array = place.array
        for to in self._others():
            start, stop = part(array.size, self.size, to)
            slot = place.slots[to] + (self.rank - (self.rank > to)) * place.pitch
            pointer, count = array.data.ptr + start * array.itemsize, stop - start
            self._copy(slot, pointer, count * array.itemsize, stream)
        self._meet(MIDDLE, stream)
        start, stop = part(array.size, self.size, self.rank)
        if stop > start:
            arguments = (
                array[start:stop], np.int64(stop - start), place.memory, np.int64(place.pitch),
                np.int32(self.size - 1),
            )  # fmt: skip
            function = kernel("copying", "add", array.dtype.name)
            launch(function, BLOCKS, THREADS, arguments, stream)

    def _meet(self, meeting: int, stream: Any) -> None:
        """Tell the others that what was enqueued before has been done here, and wait for them."""
        first = meeting * MOST_RANKS
        for to in self._others():
            flag = self._flags[to] + (first + self.rank) * WORD
            self._copy(flag, self._one.data.ptr, WORD, stream)
        take(stream, [self._own + (first + other) * WORD for other in self._others()])

    def _others(self) -> list[int]:
        """The other ranks; each rank begins with another one."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def _copy(self, to: int, source: int, nbytes: int, stream: Any) -> None:
        if nbytes > 0:
            self._runtime.memcpyAsync(to, source, nbytes, _DEVICE_TO_DEVICE, stream.ptr)

    def transfer(self, array: Any, *, to: int | None = None, source: int | None = None) -> None:
        """It has no send and receive between two ranks: every call is one of all ranks."""
        raise ValueError("copy has no send and recv: use the communicator of all ranks")

    def close(self) -> None:
        """Unmap the others' memory and give back this rank's. All ranks call it together."""
        super().close()
        self._peers.close()
        self._world.Barrier()  # memory is to be unmapped before its owner gives it back
        self._places.clear()
        if self._own:
            self._runtime.free(self._own)
            self._own = 0
