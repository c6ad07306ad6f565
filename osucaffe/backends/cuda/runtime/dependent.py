"""Owns launches that begin, in a CUDA graph, while the kernel before them is still running.

Such a kernel does nothing before that one has ended: what is saved is the time to launch it, about
1 us. CUDA calls this programmatic dependent launch.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from .device import Device
from .driver import check, cuda_driver

FIRST_DRIVER = 12030
"""Drivers of this CUDA version have such launches in graphs."""
PROGRAMMATIC_STREAM_SERIALIZATION = 6


@functools.cache
def is_possible(gpu: Device) -> bool:
    """Whether a GPU has such launches, by the driver that is there."""
    import cupy

    version: int = cupy.cuda.runtime.driverGetVersion()
    return gpu.has_dependent_launch and version >= FIRST_DRIVER


def with_waiting(text: str) -> str:
    """A text of kernels in which each begins with what common.cuh wants of it: it waits, and lets
    the next one be launched, unless the text says itself when that is best."""
    begin = "await_previous();" + (" launch_next();" if "launch_next()" not in text else "")
    return re.sub(r"__global__[^;{]*\{", rf"\g<0> {begin}", text)


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


def launch_dependent(
    function: Any,
    grid: Sequence[int],
    block: Sequence[int],
    values: Sequence[Any],
    shared: int,
) -> None:
    """Launch a kernel of CuPy's that may begin before what is ahead of it on the stream has ended.

    values: NumPy scalars and arrays (passed by value), and addresses as int. The kernel must come
    from a text `with_waiting`.
    """
    import cupy

    stream = cupy.cuda.get_current_stream().ptr
    held = [np.array(np.uint64(each) if isinstance(each, int) else each) for each in values]
    parameters = (ctypes.c_void_p * len(held))(*(each.ctypes.data for each in held))
    attribute = _Attribute(PROGRAMMATIC_STREAM_SERIALIZATION)
    attribute.value[0] = 1
    configuration = _Configuration(
        _three(grid), _three(block), shared, stream, ctypes.pointer(attribute), 1
    )
    status = cuda_driver().cuLaunchKernelEx(
        ctypes.byref(configuration), ctypes.c_void_p(function.kernel.ptr), parameters, None
    )
    check(status, "a kernel could not be launched")
