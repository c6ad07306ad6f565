"""The communicator of ranks on one host that store into one another's GPU memory (CUDA IPC).

It is made for small all-reduces, and for ranks that share a GPU, which NCCL refuses. Its kernels
are in `ipc.cu`. Memory is mapped once, at construction.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ...backends.cuda.runtime import device
from ...errors import UserError
from ..algorithms import Operation
from .kernels import kernel, launch
from .on_stream import OnStream
from .peers import Peers

MAX_RANKS = 16
PACKET_BYTES, DATA_BYTES = 16, 12
SLOT = 1 << 20
"""Packets that a rank can hold for one call; larger arrays take several calls."""
BLOCKS, THREADS = 128, 512
"""The most blocks of a kernel, and threads per block."""
TRIP = 24_000
"""Packets that leave a GPU in the time of a trip to another and of meeting it there: 1.05 us at
363 GB/s, as measured on H200s joined by NVLink."""

Launch = tuple[Any, int, int, tuple[Any, ...]]


def elements(itemsize: int) -> int:
    """How many of them a packet holds."""
    return DATA_BYTES // itemsize


def most(itemsize: int, ranks: int) -> int:
    """The elements that an all-reduce can take at a time."""
    return SLOT // (2 * ranks) * ranks * elements(itemsize)


def plan(count: int, itemsize: int, ranks: int) -> tuple[str, int]:
    """The kernel for an all-reduce of that many elements, and the packets that its threads share.

    In one shot a rank sends (ranks - 1) * packets, in two 2 * (ranks - 1) / ranks * packets and a
    trip more.
    """
    packets = -(-count // elements(itemsize))
    saved = (ranks - 1) * (ranks - 2) * packets / ranks
    if packets * ranks <= SLOT and (saved <= TRIP or packets < ranks):
        return "one_shot", packets
    return "two_shot", -(-packets // ranks)


class Ipc(OnStream):
    """The ranks of an MPI communicator, all on one host, whose GPUs reach one another.

    UserError where memory cannot be mapped.
    """

    has_all_to_all = False

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.rank, comm.size)
        if comm.size > MAX_RANKS:
            raise UserError(
                f"--comm ipc and copy take at most {MAX_RANKS} ranks of a host, not {comm.size}: "
                "use --comm nccl or mpi"
            )
        runtime = self._cupy.cuda.runtime
        self._peers = Peers(comm)
        regions = self._peers.share(2 * SLOT * PACKET_BYTES)
        self._slots = self._cupy.asarray(np.array(regions, np.uint64))
        self._calls = self._cupy.zeros(BLOCKS, np.uint32)
        # Ranks that share a GPU may run concurrently: waiting blocks must leave SMs to the others.
        gpus = comm.allgather(
            (runtime.deviceGetPCIBusId(self._device.id), device.current().sm_count)
        )
        blocks = min(min(BLOCKS, sm_count) // gpus.count((gpu, sm_count)) for gpu, sm_count in gpus)
        self._blocks = max(1, blocks)
        self._launches = functools.lru_cache(maxsize=4096)(self._prepare)
        self._try(comm)
        runtime.deviceSynchronize()
        comm.Barrier()

    def _try(self, comm: Any) -> None:
        """UserError, on all ranks, where the kernels do not compile on one."""
        trouble = ""
        try:
            self._prepare(Operation.ALL_REDUCE, 0, 1, np.dtype(np.float32), 0)
        except RuntimeError as error:
            trouble = str(error).splitlines()[0]
        if failed := [text for text in comm.allgather(trouble) if text]:
            raise UserError(
                f"the kernels of --comm ipc and copy cannot be compiled ({failed[0]}): they need "
                "NVRTC 12.4 or later; use --comm nccl, or mpi where ranks share a GPU"
            )

    def enqueue(self, operation: Operation, array: Any, root: int, stream: Any) -> None:
        """Enqueue one of the collective operations on a stream, in pieces that fit into a slot."""
        for arguments in self._launches(operation, array.data.ptr, array.size, array.dtype, root):
            launch(*arguments, stream)

    def _prepare(
        self, operation: Operation, pointer: int, count: int, dtype: np.dtype[Any], root: int
    ) -> list[Launch]:
        """What to launch for an array; prepared once, as that takes longer than to launch it."""
        item, launches = dtype.itemsize, []
        if operation in (Operation.BROADCAST, Operation.ALL_GATHER):
            rooted = operation == Operation.BROADCAST
            owned = count if rooted else -(-count // self.size)
            step = SLOT // self.size * elements(item)
            for start in range(0, owned, step):
                length = min(step, owned - start)
                numbers = (
                    np.int32(root if rooted else -1), np.int64(count), np.int64(start),
                    np.int32(length),
                )  # fmt: skip
                packets = -(-length // elements(item))
                launches.append(self._launch("spread", dtype.name, packets, pointer, *numbers))
            return launches
        step = most(item, self.size)  # an all-reduce has what any other reduction must
        for start in range(0, count, step):
            length = min(step, count - start)
            name, packets = plan(length, item, self.size)
            address = pointer + start * item
            launches.append(self._launch(name, dtype.name, packets, address, np.int32(length)))
        return launches

    def _launch(self, name: str, dtype: str, packets: int, pointer: int, *numbers: Any) -> Launch:
        """A kernel, its blocks and threads, which share that many packets, and its arguments."""
        function = kernel(
            "ipc", name, dtype, RANKS=self.size, SLOT=SLOT, BLOCKS=BLOCKS, THREADS=THREADS
        )
        threads = min(THREADS, -(-packets // 32) * 32)
        blocks = min(self._blocks, -(-packets // threads))
        rank = np.int32(self.rank)
        return function, blocks, threads, (pointer, *numbers, self._slots, self._calls, rank)

    def close(self) -> None:
        """Unmap the peers' memory and give back this rank's. All ranks call it together."""
        super().close()
        self._peers.close()
