"""Owns programmatic dependent launch (PDL): in a CUDA graph, a kernel is launched while the one
before it still runs, and waits for its end. This saves the time of a launch, about 1 us."""

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


def check_heads(text: str) -> None:
    """RuntimeError where a kernel of a text does not begin by waiting for what it follows: with
    PDL_BEGIN, or with pdl_wait() if it says itself, later, when the next may be launched."""
    for name in re.findall(
        r"__global__[^;{]*\b(\w+)\([^;{]*\{(?!\s*(?:PDL_BEGIN|pdl_wait\(\));)", text
    ):
        raise RuntimeError(f"kernel {name} must begin with PDL_BEGIN or pdl_wait() (common.cuh)")


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
    `check_heads`.
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
