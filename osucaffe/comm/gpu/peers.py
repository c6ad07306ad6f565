"""Owns the memory of other ranks' GPUs that is mapped into this process (CUDA IPC)."""

from __future__ import annotations

from typing import Any

from ...errors import UserError
from .driver import allocation

BLOCK = 2 << 20
"""Bytes that CUDA gives out at once. A handle means all of them: smaller allocations share one
(CUDA Programming Guide, "Interprocess Communication", which advises multiples of it)."""


class Peers:
    """What the ranks of an MPI communicator, all on one host, let one another read and write.

    A handle names a whole allocation; it is opened once, and stays open until `close`.
    """

    def __init__(self, comm: Any) -> None:
        import cupy

        self._comm = comm
        self._runtime = cupy.cuda.runtime
        self._opened: dict[bytes, int] = {}
        self._shared: list[int] = []

    def share(self, nbytes: int) -> list[int]:
        """The addresses of zeros that each rank gives for the others to write, until `close`.

        They lie in blocks of their own: a handle means whole ones. All ranks call it together.
        UserError, on all alike, where memory cannot be had or mapped.
        """
        trouble = ""
        try:
            pointer = self._runtime.malloc(-(-nbytes // BLOCK) * BLOCK)
            self._shared.append(pointer)
            self._runtime.memset(pointer, 0, nbytes)
            self._runtime.deviceSynchronize()
        except self._runtime.CUDARuntimeError as error:
            trouble = str(error)
        if failed := [text for text in self._comm.allgather(trouble) if text]:
            self.close()
            raise UserError(f"{nbytes} bytes for all ranks cannot be had of a GPU ({failed[0]})")
        try:
            return self.addresses(pointer)
        except UserError:
            self.close()
            raise

    def addresses(self, pointer: int) -> list[int]:
        """Where each rank's memory, which it calls this with, lies for this process.

        All ranks call it together. UserError where memory cannot be mapped.
        """
        trouble, found, own = "", [], None
        try:
            start = allocation(pointer)
            own = self._runtime.ipcGetMemHandle(start), pointer - start
        except self._runtime.CUDARuntimeError as error:
            trouble = str(error)
        for rank, offered in enumerate(self._comm.allgather(own)):
            if rank == self._comm.rank:
                found.append(pointer)
                continue
            if offered is None:
                continue
            handle, offset = offered
            try:
                if handle not in self._opened:
                    self._opened[handle] = self._runtime.ipcOpenMemHandle(handle)
                found.append(self._opened[handle] + offset)
            except self._runtime.CUDARuntimeError as error:
                trouble = str(error)
        if failed := [text for text in self._comm.allgather(trouble) if text]:
            raise UserError(
                f"the memory of the other ranks' GPUs cannot be mapped ({failed[0]}): use --comm "
                "nccl or mpi"
            )
        return found

    def close(self) -> None:
        """Unmap it all, and give back what was shared. All ranks call it together."""
        for address in self._opened.values():
            self._runtime.ipcCloseMemHandle(address)
        self._opened.clear()
        self._comm.Barrier()  # CUDA wants memory unmapped everywhere before it is given back
        for pointer in self._shared:
            self._runtime.free(pointer)
        self._shared.clear()
