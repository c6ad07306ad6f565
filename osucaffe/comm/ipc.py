"""Owns the communicator of ranks on one host that read one another's GPU memory (CUDA IPC).

Its kernels are `ipc.cu`. It is for small and medium all-reduces, and for ranks that share a GPU,
which NCCL refuses. Memory is mapped once, when it is made.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from .on_stream import OnStream

BLOCKS, THREADS = 32, 512
MOST_RANKS = 16
BUFFER_BYTES = 8 << 20
"""How much a call can move; larger arrays take several calls."""
FLAG_BYTES = 4096
ONE_SHOT = 128 << 10
"""Bytes up to which every rank adds everything."""
SMALL = 512 << 10
"""Bytes up to which "nccl+ipc" brings an all-reduce here."""

_PLAIN = "return v;"
_TYPES = {
    "float32": ("float", "float", _PLAIN, _PLAIN),
    "float64": ("double", "double", _PLAIN, _PLAIN),
    "int32": ("int", "int", _PLAIN, _PLAIN),
    "float16": (
        "unsigned short",
        "float",
        'float wide; asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v)); return wide;',
        'T narrow; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(v)); return narrow;',
    ),
    "uint16": (
        "unsigned short",
        "float",
        "return __uint_as_float((unsigned)v << 16);",
        'T narrow; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(v)); return narrow;',
    ),
}
"""For each type of array: the element, what it is added in, and the bodies that convert."""


@functools.cache
def _module(dtype: str) -> Any:
    import cupy

    element, total, widen, narrow = _TYPES[dtype]
    head = (
        "typedef unsigned int uint32_t; typedef unsigned long long uint64_t;\n"
        "typedef int int32_t; typedef long long int64_t;\n"
        f"typedef {element} T; typedef {total} A;\n"
        f"#define FLAG_BYTES {FLAG_BYTES}\n#define BUFFER_BYTES {BUFFER_BYTES}ull\n"
        f"#define MOST_RANKS {MOST_RANKS}\n"
        f"__device__ __forceinline__ A to_sum(T v) {{ {widen} }}\n"
        f"__device__ __forceinline__ T from_sum(A v) {{ {narrow} }}\n"
    )
    text = Path(__file__).with_suffix(".cu").read_text()
    return cupy.RawModule(code=head + text, options=("-std=c++17",))


class Ipc(OnStream):
    """The ranks of an MPI communicator, all on one host, whose GPUs reach one another.

    UserError where memory cannot be mapped.
    """

    def __init__(self, comm: Any) -> None:
        super().__init__(comm.rank, comm.size)
        if comm.size > MOST_RANKS:
            raise UserError(f"--comm ipc: at most {MOST_RANKS} ranks of a host, not {comm.size}")
        runtime = self._runtime = self._cupy.cuda.runtime
        nbytes = FLAG_BYTES + 2 * BUFFER_BYTES
        self._region = runtime.malloc(nbytes)  # an allocation of its own: a handle means all of one
        runtime.memset(self._region, 0, nbytes)
        runtime.deviceSynchronize()
        handles = comm.allgather(runtime.ipcGetMemHandle(self._region))
        self._mapped, trouble = self._map(handles)
        if failed := [text for text in comm.allgather(trouble) if text]:
            self.close()
            raise UserError(
                f"the memory of the other ranks' GPUs cannot be mapped ({failed[0]}): use --comm "
                "nccl or mpi"
            )
        addresses = [self._mapped.get(rank, self._region) for rank in range(comm.size)]
        self._peers = self._cupy.asarray(np.array(addresses, np.uint64))
        self._calls = self._cupy.zeros(BLOCKS, np.uint32)
        runtime.deviceSynchronize()
        comm.Barrier()

    def _map(self, handles: list[bytes]) -> tuple[dict[int, int], str]:
        """The addresses of the peers' regions, and what went wrong if something did."""
        mapped: dict[int, int] = {}
        for rank, handle in enumerate(handles):
            if rank != self.rank:
                try:
                    mapped[rank] = self._runtime.ipcOpenMemHandle(handle)
                except self._runtime.CUDARuntimeError as error:
                    return mapped, str(error)
        return mapped, ""

    @staticmethod
    def takes(nbytes: int) -> bool:
        """Whether "nccl+ipc" brings an all-reduce of so many bytes here."""
        return nbytes <= SMALL

    def enqueue(self, operation: str, array: Any, root: int, stream: Any) -> None:
        """Enqueue one of the collective operations on a stream, in pieces that fit the buffers."""
        most = BUFFER_BYTES // array.itemsize
        for start in range(0, array.size, most):
            piece = array[start : start + most]
            if operation in ("broadcast", "all_gather"):
                owner = root if operation == "broadcast" else -1
                extra = np.int32(owner), np.int64(start), np.int64(array.size)
                self._launch("pull", piece, stream, *extra)
            else:  # a reduction to all holds what any other reduction must
                small = piece.nbytes <= ONE_SHOT or self.size == 2
                self._launch("one_shot" if small else "two_shot", piece, stream)

    def _launch(self, name: str, piece: Any, stream: Any, *extra: Any) -> None:
        arguments = (
            piece, np.int64(piece.size), self._peers, np.int32(self.rank), np.int32(self.size),
            self._calls, *extra,
        )  # fmt: skip
        function = _module(piece.dtype.name).get_function(name)
        with stream:
            function((BLOCKS,), (THREADS,), arguments)

    def transfer(self, array: Any, *, to: int | None = None, source: int | None = None) -> None:
        """It has no send and receive between two ranks: every call is one of all ranks."""
        raise ValueError("ipc has no send and recv: use the communicator of all ranks")

    def close(self) -> None:
        """Unmap the peers' memory and give back this rank's."""
        super().close()
        for address in self._mapped.values():
            self._runtime.ipcCloseMemHandle(address)
        self._mapped.clear()
        if self._region:
            self._runtime.free(self._region)
            self._region = 0
