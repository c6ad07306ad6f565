"""Owns the calls of the CUDA driver by which ranks share memory and meet."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...backends.cuda.runtime.driver import check, cuda_driver
from ...errors import UserError

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
    operations of a batch are done in their order, and what comes behind a wait begins after it.
    """
    operations = [
        *(Operation(_WRITE, flag, 1, _DEFAULT) for flag in raised),
        *(Operation(_WAIT, flag, 1, _EQUAL) for flag in awaited),
        *(Operation(_WRITE, flag, 0, _DEFAULT) for flag in awaited),
    ]
    batch = (Operation * len(operations))(*operations)
    call = cuda_driver().cuStreamBatchMemOp_v2
    check(call(ctypes.c_void_p(stream.ptr), len(operations), batch, 0), "flags")
