"""The host as calls see it: memory, workers, random numbers and the element type of blobs."""

from __future__ import annotations

import ctypes

import numpy as np

from ..backend import Backend
from ..random import RandomState
from ..tensor import Tensor
from .workers import Workers

ALIGNMENT = 64


class Host(Backend):
    """A backend but for its steps: see `Cpu`."""

    def __init__(self, dtype: str, threads: int) -> None:
        if dtype not in ("float32", "float64"):
            raise ValueError(f"the CPU backend computes in float32 or float64, not {dtype}")
        self.dtype = dtype
        self.threads = threads
        self.workers = Workers(threads)
        self.random = RandomState()

    def allocate(self, nbytes: int) -> np.ndarray:
        """A flat uint8 array of nbytes, not initialized, that begins on a cache line."""
        return _aligned(np.empty(nbytes + ALIGNMENT, np.uint8))

    def allocate_zeros_for(self, tensor: Tensor) -> None:
        # Which the system gives as they are, page by page when they are first written.
        self.place(tensor, _aligned(np.zeros(self.nbytes(tensor) + ALIGNMENT, np.uint8)), 0)

    def memory_at(self, address: int, nbytes: int) -> np.ndarray:
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def dtype_of(self, tensor: Tensor) -> np.dtype:
        """The type in which this backend holds the tensor."""
        return np.dtype(self.dtype if tensor.dtype == "float32" else tensor.dtype)

    def nbytes(self, tensor: Tensor) -> int:
        return tensor.size * self.dtype_of(tensor).itemsize

    def place(self, tensor: Tensor, memory: np.ndarray, offset: int) -> None:
        piece = memory[offset : offset + self.nbytes(tensor)].view(self.dtype_of(tensor))
        tensor.place(piece, piece.ctypes.data)


def _aligned(memory: np.ndarray) -> np.ndarray:
    """All of this memory but ALIGNMENT bytes, from where a cache line begins."""
    offset = -memory.ctypes.data % ALIGNMENT
    return memory[offset : offset + len(memory) - ALIGNMENT]
