"""Calls of the CUDA driver that CuPy does not offer: descriptions of arrays by which Hopper
GPUs copy boxes of them to shared memory, and programmatic dependent launch (PDL).

By PDL, in a CUDA graph a kernel is launched while the one before it still runs, and waits for its
end. This saves the time of a launch, about 1 us.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...tensor import Shape, Tensor
from .device import Device

MAX_EXTENT, MAX_RUN = 256, 1024
"""Of a box; of a run."""
BYTES, ALIGNMENT = 128, 64
"""Of a description."""
_TYPES = {4: 11, 2: 1}
"""By bytes of an element: CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, _UINT16."""
_SWIZZLES, _LINES = {32: 1, 64: 2, 128: 3}, 2
"""By bytes of a row: CU_TENSOR_MAP_SWIZZLE_32B and so on; CU_TENSOR_MAP_L2_PROMOTION_L2_128B."""
FIRST_DRIVER = 12030
"""Drivers of this CUDA version have such launches in graphs."""
PROGRAMMATIC_STREAM_SERIALIZATION = 6


@functools.cache
def cuda_driver() -> ctypes.CDLL:
    """The library. Its functions return a status: see `check`."""
    return ctypes.CDLL("libcuda.so.1")


def check(status: int, what: str) -> None:
    """Raise if a call failed. what: was to be done, or to be known."""
    if status:
        raise RuntimeError(f"{what}: the CUDA driver says error {status}")


# -- boxes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """Boxes of an array, of which floats are rounded to the nearest of tf32 on their way. The axes
    begin with the one that varies fastest.

    extents: of the array; strides: of the axes but the first, in elements; box: extents of a box;
    bytes: of an element; permuted: rows of 128, 64 or 32 bytes come as `rows_descriptor` of
    hopper.cuh wants them.
    """

    extents: Shape
    strides: Shape
    box: Shape
    bytes: int = 4
    permuted: bool = False

    def of(self, tensor: Tensor) -> Described:
        """What tells a kernel of boxes of a tensor, whatever its address will be."""
        return Described(self, tensor)


@dataclass(frozen=True)
class Pixels:
    """Runs of neighbouring pixels of images with the channels last, each a row of channels, which
    comes permuted (see `Box`).

    shape: (N, C, H, W); before: rows of zeros that each image begins with, and pixels of zeros that
    each row begins with; bytes: of an element.
    """

    shape: Shape
    before: Shape
    channels: int
    pixels: int
    bytes: int

    def of(self, tensor: Tensor) -> Described:
        """What tells a kernel of runs of a tensor, whatever its address will be."""
        return Described(self, tensor)


@dataclass(frozen=True, eq=False)
class Described:
    """A tensor as an array of boxes or of pixels: an argument of a kernel."""

    box: Box | Pixels
    tensor: Tensor

    @property
    def value(self) -> Any:
        """128 bytes."""
        return encoded(self.box, self.tensor.address)


@functools.lru_cache(1024)
def encoded(box: Box | Pixels, address: int) -> Any:
    """The description of the array at an address, by the driver's cuTensorMapEncodeTiled, or
    cuTensorMapEncodeIm2col."""
    memory = (ctypes.c_uint8 * (BYTES + ALIGNMENT))()
    start = -ctypes.addressof(memory) % ALIGNMENT
    if isinstance(box, Box):
        encode, extents, size = "Tiled", box.extents, box.bytes
        strides, row = box.strides, box.box[0] * size
        parts: list[Any] = [(ctypes.c_uint32 * len(extents))(*box.box)]
    else:
        n, c, h, w = box.shape
        encode, extents, size = "Im2col", (c, w, h, n), box.bytes
        strides, row = (c, w * c, h * w * c), box.channels * size
        corners = [-extent for extent in reversed(box.before)], [0, 0]  # from either end
        parts = [(ctypes.c_int * 2)(*corner) for corner in corners]
        parts += [ctypes.c_uint32(box.channels), ctypes.c_uint32(box.pixels)]
    axes, permuted = len(extents), not isinstance(box, Box) or box.permuted
    status = getattr(cuda_driver(), f"cuTensorMapEncode{encode}")(
        ctypes.byref(memory, start), _TYPES[size], ctypes.c_uint32(axes), ctypes.c_void_p(address),
        (ctypes.c_uint64 * axes)(*extents),
        (ctypes.c_uint64 * (axes - 1))(*(size * stride for stride in strides)),
        *parts, (ctypes.c_uint32 * axes)(*[1] * axes),
        0, _SWIZZLES[row] if permuted else 0, _LINES, 0,
    )  # fmt: skip
    check(status, f"{box} at {address:#x}")
    return np.frombuffer(bytes(memory)[start : start + BYTES], np.dtype((np.void, BYTES)))


# -- launches --------------------------------------------------------------------------------------


@functools.cache
def launches_early(gpu: Device) -> bool:
    """Whether a GPU has such launches, by the driver that is there."""
    import cupy

    version: int = cupy.cuda.runtime.driverGetVersion()
    return gpu.has_dependent_launch and version >= FIRST_DRIVER


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute"""

    _fields_ = (
        ("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_int * 16),
    )  # fmt: skip


class _Configuration(ctypes.Structure):
    """CUlaunchConfig"""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def _three(extents: Sequence[int]) -> Any:
    return (ctypes.c_uint * 3)(*extents, *[1] * (3 - len(extents)))


def launch_early(
    function: Any,
    grid: Sequence[int],
    block: Sequence[int],
    values: Sequence[Any],
    shared: int,
) -> None:
    """Launch a kernel of CuPy's that may begin before what is ahead of it on the stream has ended.

    values: NumPy scalars and arrays (passed by value), and addresses as int. The kernel must pass
    `compile.check_heads`.
    """
    import cupy

    stream = cupy.cuda.get_current_stream().ptr
    arguments = [np.array(np.uint64(each) if isinstance(each, int) else each) for each in values]
    parameters = (ctypes.c_void_p * len(arguments))(*(each.ctypes.data for each in arguments))
    attribute = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    configuration = _Configuration(
        _three(grid), _three(block), shared, stream, ctypes.pointer(attribute), 1
    )
    status = cuda_driver().cuLaunchKernelEx(
        ctypes.byref(configuration), ctypes.c_void_p(function.kernel.ptr), parameters, None
    )
    check(status, "a kernel could not be launched")
