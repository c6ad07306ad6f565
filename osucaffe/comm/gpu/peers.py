"""How ranks of one host, each with its GPU, share memory and synchronize: the memory of the
others' GPUs that is mapped into this process (CUDA IPC), the driver's calls for it, and what ranks
give one another for their records.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...backends.cuda.runtime.driver import check, cuda_driver
from ...errors import UserError

if TYPE_CHECKING:
    from ..job.job import MpiJob

FLAG_BYTES = 8
_WAIT, _WRITE = 4, 5
"""CU_STREAM_MEM_OP_WAIT_VALUE_64, CU_STREAM_MEM_OP_WRITE_VALUE_64."""
_EQUAL, _DEFAULT = 1, 0
"""CU_STREAM_WAIT_VALUE_EQ, CU_STREAM_WRITE_VALUE_DEFAULT."""
_CAN_USE_64_BIT_STREAM_MEM_OPS = 122


class Operation(ctypes.Structure):
    """The driver's CUstreamBatchMemOpParams, for waiting and for writing."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("alias", ctypes.c_uint64),
        ("padding", ctypes.c_uint64),
    )


def allocation(pointer: int) -> int:
    """Where the allocation of device memory begins that this address is in: pools cut theirs."""
    start = ctypes.c_uint64()
    query = cuda_driver().cuMemGetAddressRange_v2
    check(query(ctypes.byref(start), None, ctypes.c_uint64(pointer)), f"memory at {pointer:#x}")
    return start.value


def require_flags() -> None:
    """UserError unless `exchange` works on the current device."""
    device, able = ctypes.c_int(), ctypes.c_int()
    if hasattr(cuda_driver(), "cuStreamBatchMemOp_v2"):
        check(cuda_driver().cuCtxGetDevice(ctypes.byref(device)), "the current device")
        query = cuda_driver().cuDeviceGetAttribute
        check(query(ctypes.byref(able), _CAN_USE_64_BIT_STREAM_MEM_OPS, device), "an attribute")
    if not able.value:
        raise UserError(
            "--comm copy: this GPU or its driver has no stream memory operations, by which ranks "
            "meet: use --comm nccl or ipc"
        )


def exchange(stream: Any, raised: Sequence[int], awaited: Sequence[int]) -> None:
    """Let a stream set the flags at some addresses to 1, of peers' memory too; then wait until
    those at others are 1, and set them to 0. No multiprocessor takes part.

    Who sees a flag sees what the stream did before, copies into peers' memory too: a write has a
    fence before it, like __threadfence_system but for all of the stream (CUDA Driver API,
    CU_STREAM_WRITE_VALUE_DEFAULT); NVSHMEM's put with signal is such a copy and such a write. The
    operations of a batch are done in their order, and what comes after a wait begins after it.
    """
    operations = [
        *(Operation(_WRITE, flag, 1, _DEFAULT) for flag in raised),
        *(Operation(_WAIT, flag, 1, _EQUAL) for flag in awaited),
        *(Operation(_WRITE, flag, 0, _DEFAULT) for flag in awaited),
    ]
    batch = (Operation * len(operations))(*operations)
    call = cuda_driver().cuStreamBatchMemOp_v2
    check(call(ctypes.c_void_p(stream.ptr), len(operations), batch, 0), "flags")


BLOCK = 2 << 20
"""Bytes that CUDA gives out at once. A handle means all of them: smaller allocations share one
(CUDA Programming Guide, "Interprocess Communication", which advises multiples of it)."""


class Peers:
    """GPU memory that the ranks of an MPI communicator, all on one host, share by CUDA IPC.

    A handle names an entire allocation; it is opened once, and stays open until `close`.
    """

    def __init__(self, comm: Any) -> None:
        import cupy

        self._comm = comm
        self._runtime = cupy.cuda.runtime
        self._opened: dict[bytes, int] = {}
        self._shared: list[int] = []

    def share(self, nbytes: int) -> list[int]:
        """The addresses of zeroed memory of each rank that the others may write, until `close`.

        It is allocated in full blocks: a handle covers a block. All ranks call it together.
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
            raise UserError(
                f"{nbytes} bytes for all ranks cannot be allocated on a GPU ({failed[0]})"
            )
        try:
            return self.addresses(pointer)
        except UserError:
            self.close()
            raise

    def addresses(self, pointer: int) -> list[int]:
        """The addresses, in this process, of the memory that each rank passes.

        All ranks call it together. UserError where memory cannot be mapped.
        """
        trouble, pointers, offer = "", [], None
        try:
            start = allocation(pointer)
            offer = self._runtime.ipcGetMemHandle(start), pointer - start
        except self._runtime.CUDARuntimeError as error:
            trouble = str(error)
        for rank, offered in enumerate(self._comm.allgather(offer)):
            if rank == self._comm.rank:
                pointers.append(pointer)
                continue
            if offered is None:
                continue
            handle, offset = offered
            try:
                if handle not in self._opened:
                    self._opened[handle] = self._runtime.ipcOpenMemHandle(handle)
                pointers.append(self._opened[handle] + offset)
            except self._runtime.CUDARuntimeError as error:
                trouble = str(error)
        if failed := [text for text in self._comm.allgather(trouble) if text]:
            raise UserError(
                f"the memory of the other ranks' GPUs cannot be mapped ({failed[0]}): use --comm "
                "nccl or mpi"
            )
        return pointers

    def close(self) -> None:
        """Unmap it all, and give back what was shared. All ranks call it together."""
        for address in self._opened.values():
            self._runtime.ipcCloseMemHandle(address)
        self._opened.clear()
        self._comm.Barrier()  # CUDA requires memory to be unmapped everywhere before it is freed
        for pointer in self._shared:
            self._runtime.free(pointer)
        self._shared.clear()


class HostRanks:
    """The ranks of a job as the data cache's neighbours (`data.resident.sharded`)."""

    def __init__(self, job: MpiJob) -> None:
        self.rank, self.size = job.rank, job.size
        self.gather: Callable[[Any], list[Any]] = job.gather
        self._comm = job.world.Dup()
        self._shared: list[Peers] = []

    def share(self, nbytes: int) -> list[int]:
        """The addresses of so much memory of each GPU's, until the process ends; none where it
        cannot be had, or mapped. All ranks call it together."""
        peers = Peers(self._comm)  # a separate one: closing it unmaps all that it shares
        try:
            addresses = peers.share(nbytes)
        except UserError:  # on all ranks alike
            return []
        self._shared.append(peers)
        return addresses

    def share_host(self, nbytes: int) -> np.ndarray | None:
        """Zeros (uint8) that are the same memory for all ranks, of no file system; None where that
        cannot be had. All ranks call it together."""
        file, path, memory = -1, "", None
        with contextlib.suppress(AttributeError, OSError):
            if not self.rank:
                file = os.memfd_create("osucaffe-shared")
                os.ftruncate(file, nbytes)
                path = f"/proc/{os.getpid()}/fd/{file}"
        path = self.gather(path)[0]
        with contextlib.suppress(OSError, ValueError):
            opened = os.open(path, os.O_RDWR)
            memory = np.frombuffer(mmap.mmap(opened, nbytes), np.uint8)
            os.close(opened)
        there = all(self.gather(memory is not None))  # only now rank 0 may close it
        if file >= 0:
            os.close(file)
        return memory if there else None
