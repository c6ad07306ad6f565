"""Owns the descriptions of arrays by which Hopper GPUs copy boxes of them to shared memory."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor import Shape, Tensor
from .driver import check, cuda_driver

MOST_EXTENT = 256
"""Of a box."""
BYTES, ALIGNMENT = 128, 64
"""Of a description."""
_FLOAT32, _LINES = 7, 2
"""CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_L2_PROMOTION_L2_128B."""


@dataclass(frozen=True)
class Box:
    """Boxes of an array of float32. The axes begin with the one that varies fastest.

    extents: of the array; strides: of the axes but the first, in elements; box: extents of a box.
    """

    extents: Shape
    strides: Shape
    box: Shape

    def of(self, tensor: Tensor) -> Described:
        """What tells a kernel of boxes of a tensor, whatever its address will be."""
        return Described(self, tensor)


@dataclass(frozen=True, eq=False)
class Described:
    """A tensor as an array of boxes: an argument of a kernel."""

    box: Box
    tensor: Tensor

    @property
    def value(self) -> Any:
        """128 bytes."""
        return encoded(self.box, self.tensor.address)


@functools.lru_cache(1024)
def encoded(box: Box, address: int) -> Any:
    """The description of the array at an address, by the driver's cuTensorMapEncodeTiled."""
    axes = len(box.extents)
    memory = (ctypes.c_uint8 * (BYTES + ALIGNMENT))()
    start = -ctypes.addressof(memory) % ALIGNMENT
    status = cuda_driver().cuTensorMapEncodeTiled(
        ctypes.byref(memory, start), _FLOAT32, ctypes.c_uint32(axes), ctypes.c_void_p(address),
        (ctypes.c_uint64 * axes)(*box.extents),
        (ctypes.c_uint64 * (axes - 1))(*(4 * stride for stride in box.strides)),
        (ctypes.c_uint32 * axes)(*box.box), (ctypes.c_uint32 * axes)(*[1] * axes),
        0, 0, _LINES, 0,
    )  # fmt: skip
    check(status, f"{box} at {address:#x}")
    return np.frombuffer(bytes(memory)[start : start + BYTES], np.dtype((np.void, BYTES)))
