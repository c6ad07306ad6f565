"""The NCCL communicator (through CuPy): ranks with a GPU each, on one host or on several.

Operations can go to `ipc` instead, where that is faster.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...backends.cuda.runtime.startup import load_nccl
from ..algorithms import Operation, all_to_all
from .ipc import Ipc
from .on_stream import OnStream

_TYPES = {"int32": 2, "float16": 6, "float32": 7, "float64": 8, "uint16": 9}
"""NCCL's numbers of the types; uint16 holds the bits of bfloat16."""
_SUM = 0


class Nccl(OnStream):
    """The ranks of an MPI communicator, which only broadcasts NCCL's unique id.

    small: does the operations on that many bytes that `takes` says so. NCCL refuses two ranks on
    one GPU. UserError where it is not installed.
    """

    def __init__(
        self,
        comm: Any,
        *,
        small: Ipc | None = None,
        takes: Callable[[Operation, int], bool] = lambda operation, nbytes: False,
    ) -> None:
        super().__init__(comm.rank, comm.size)
        nccl = load_nccl()
        identity = comm.bcast(nccl.get_unique_id() if comm.rank == 0 else None)
        self._nccl = nccl
        self._comm = nccl.NcclCommunicator(comm.size, identity, comm.rank)
        self._small = small
        self._takes = functools.lru_cache(maxsize=4096)(takes)

    def enqueue(self, operation: Operation, array: Any, root: int, stream: Any) -> None:
        """Enqueue one of the collective operations on a stream."""
        small = self._small
        takes = operation != Operation.ALL_TO_ALL and self._takes(operation, array.nbytes)
        if small is not None and takes:
            small.launch(operation, array, root, stream)
            return
        pointer, count, kind = array.data.ptr, array.size, _TYPES[array.dtype.name]
        if operation == Operation.ALL_REDUCE:
            self._comm.allReduce(pointer, pointer, count, kind, _SUM, stream.ptr)
        elif operation == Operation.REDUCE:
            self._comm.reduce(pointer, pointer, count, kind, _SUM, root, stream.ptr)
        elif operation == Operation.BROADCAST:
            self._comm.broadcast(pointer, pointer, count, kind, root, stream.ptr)
        elif operation == Operation.ALL_TO_ALL:
            self._send_parts(array, kind, stream)
        elif count % self.size:
            self._by_parts(operation, array, kind, stream)
        else:
            share = count // self.size
            part = pointer + self.rank * share * array.itemsize
            if operation == Operation.REDUCE_SCATTER:
                self._comm.reduceScatter(pointer, part, share, kind, _SUM, stream.ptr)
            else:
                self._comm.allGather(part, pointer, share, kind, stream.ptr)

    def _by_parts(self, operation: Operation, array: Any, kind: int, stream: Any) -> None:
        """Parts that are not equal, as NCCL wants them: a group of reductions or broadcasts."""
        self._nccl.groupStart()
        for owner in range(self.size):
            start, stop = self.part(array.size, owner)
            pointer, count = array.data.ptr + start * array.itemsize, stop - start
            if not count:
                continue
            if operation == Operation.ALL_GATHER:
                self._comm.broadcast(pointer, pointer, count, kind, owner, stream.ptr)
            else:
                self._comm.reduce(pointer, pointer, count, kind, _SUM, owner, stream.ptr)
        self._nccl.groupEnd()

    def _send_parts(self, array: Any, kind: int, stream: Any) -> None:
        """A group of messages to and from each other rank."""
        step = all_to_all(self.rank, self.size, array.size)
        self._nccl.groupStart()
        for method, transfers in (self._comm.send, step.sends), (self._comm.recv, step.receives):
            for peer, start, stop, _ in transfers:
                pointer = array.data.ptr + start * array.itemsize
                method(pointer, stop - start, kind, peer, stream.ptr)
        self._nccl.groupEnd()

    def inside(self) -> list[Ipc]:
        """What does small operations."""
        return [] if self._small is None else [self._small]

    def close(self) -> None:
        """End NCCL's communicator: with it alive, a program may hang at its end.

        All ranks call it together. It waits until no CUDA graph lives that has captured one of
        its operations.
        """
        super().close()
        self._comm.destroy()
        if self._small is not None:
            self._small.close()
