"""Owns the calls of the CUDA driver that CuPy does not offer."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

_WAIT, _WRITE = 1, 2
_EQUAL = 1


class _Operation(ctypes.Structure):
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
    query = _driver().cuMemGetAddressRange_v2
    _check(query(ctypes.byref(start), None, ctypes.c_uint64(pointer)), f"memory at {pointer:#x}")
    return start.value


def take(stream: Any, flags: Sequence[int]) -> None:
    """Let a stream wait until the words at these addresses are 1, and set them to 0.

    No multiprocessor takes part.
    """
    waits = [_Operation(_WAIT, flag, 1, _EQUAL) for flag in flags]
    writes = [_Operation(_WRITE, flag, 0, 0) for flag in flags]
    operations = (_Operation * (2 * len(flags)))(*waits, *writes)
    call = _driver().cuStreamBatchMemOp_v2
    _check(call(ctypes.c_void_p(stream.ptr), len(operations), operations, 0), "waiting for memory")


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what}: the CUDA driver says error {status}")
