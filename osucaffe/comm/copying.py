"""Owns the communicator of ranks on one host whose GPUs' copy engines move the data.

Multiprocessors only add: what computes beside it keeps them, which no kernel that moves data can
say of itself. Its kernels are `copying.cu`. It is for large arrays that lie at the same place in
every call, as weights and gradients do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .kernels import kernel, launch
from .on_stream import OnStream
from .peers import Peers

MOST_RANKS = 32
FLAG_BYTES = 4096
SLOT_BYTES = 8 << 20
"""What a rank can send to another before that one has to add it."""
BLOCKS, THREADS = 132, 512
_DEVICE_TO_DEVICE = 3


class Copying(OnStream):
    """The ranks of an MPI communicator, all on one host, whose GPUs reach one another.

    An array is mapped by the others when it is first seen, and kept from then on: arrays that come
    and go are not for it. UserError where memory cannot be mapped.
    """

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.rank, comm.size)
        runtime = self._runtime = self._cupy.cuda.runtime
        self._peers = Peers(comm)
        # A set of slots for each other rank, and two sets: one is filled while one is added.
        self._regions = self._peers.share(FLAG_BYTES + 2 * (comm.size - 1) * SLOT_BYTES)
        self._flags = self._cupy.asarray(np.array(self._regions, np.uint64))
        self._meetings = self._cupy.zeros(1, np.uint32)
        self._arrays: dict[tuple[int, int], tuple[Any, list[int]]] = {}
        self.stream.synchronize()
        runtime.deviceSynchronize()
        comm.Barrier()

    def enqueue(self, operation: str, array: Any, root: int, stream: Any) -> None:
        """Enqueue one of the collective operations on a stream."""
        there, own = self._find(array), self.part(array.size)
        if operation in ("broadcast", "all_gather"):
            self._meet(stream)  # nobody reads or writes any more what others write now
        else:
            self._reduce_scatter(array, stream)
        if operation == "broadcast":
            if self.rank == root:
                parts = {to: self.part(array.size, to) for to in range(self.size)}
                self._push(array, there, parts, stream)
            self._meet(stream)
        if operation != "reduce_scatter":
            readers = [root] if operation == "reduce" else range(self.size)
            self._push(array, there, dict.fromkeys(readers, own), stream)
            self._meet(stream)

    def _find(self, array: Any) -> list[int]:
        """Where the array lies on each rank. Its memory is not given back while it is known."""
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
                start, stop = (each * array.itemsize for each in ranges[to])
                self._copy(there[to] + start, array.data.ptr + start, stop - start, stream)

    def _reduce_scatter(self, array: Any, stream: Any) -> None:
        """Send each rank its part, a slot at a time, and add what comes.

        When all have met behind a slot, all have added what was in the one before: that one is
        free. The first slots are free when all have met at the beginning.
        """
        parts = [self.part(array.size, rank) for rank in range(self.size)]
        most = SLOT_BYTES // array.itemsize
        self._meet(stream)
        for turn, offset in enumerate(range(0, -(-array.size // self.size), most)):
            for to in self._others():
                start, stop = _piece(parts[to], offset, most)
                nbytes = (stop - start) * array.itemsize
                pointer = array.data.ptr + start * array.itemsize
                self._copy(self._slot(to, turn, self.rank), pointer, nbytes, stream)
            self._meet(stream)
            start, stop = _piece(parts[self.rank], offset, most)
            if stop > start:
                first = self._slot(self.rank, turn, 0 if self.rank else 1)
                arguments = (
                    array[start:stop], np.int64(stop - start), np.uint64(first),
                    np.int64(SLOT_BYTES), np.int32(self.size - 1),
                )  # fmt: skip
                function = kernel("copying", "add", array.dtype.name)
                launch(function, BLOCKS, THREADS, arguments, stream)

    def _others(self) -> list[int]:
        """The other ranks. No two ranks begin with the same one."""
        return [(self.rank + step) % self.size for step in range(1, self.size)]

    def _slot(self, owner: int, turn: int, writer: int) -> int:
        """The address of what one rank writes for another, in this turn."""
        index = turn % 2 * (self.size - 1) + writer - (writer > owner)
        return self._regions[owner] + FLAG_BYTES + index * SLOT_BYTES

    def _meet(self, stream: Any) -> None:
        arguments = self._flags, np.int32(self.rank), np.int32(self.size), self._meetings
        launch(kernel("copying", "meet", "float32"), 1, MOST_RANKS, arguments, stream)

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
        self._arrays.clear()


def _piece(whole: tuple[int, int], offset: int, most: int) -> tuple[int, int]:
    """At most so many elements of a range, from an offset in it on; none behind its end."""
    start = min(whole[0] + offset, whole[1])
    return start, min(start + most, whole[1])
