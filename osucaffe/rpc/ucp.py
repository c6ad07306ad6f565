"""UCX's C interface (ucp/api/ucp.h), as far as the channel needs it: the library, and its
structures and numbers.

The library is the one that MPI has loaded, or will load: two of them in a process would take each
other's parts.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from ctypes import c_int8 as c_status
from pathlib import Path
from typing import Any

from ..errors import UserError

_NAME = "libucp.so.0"
_VERSION = 1, 10
"""Of the interface: all that is used here was there."""

OK, IN_PROGRESS = 0, 1
TRUNCATED = -9
_LAST_ERROR = -100
TAG, WAKEUP = 1 << 0, 1 << 4
FEATURES = 1 << 0
THREAD_MODE, SERIALIZED = 1 << 0, 1
REMOTE_ADDRESS, ERROR_MODE = 1 << 0, 1 << 1
NO_ERRORS, PEER_ERRORS = 0, 1
CALLBACK, USER_DATA, DATATYPE, RECEIVE_INFO = 1 << 1, 1 << 2, 1 << 3, 1 << 7
BYTES, PIECES = 1 << 3, 2
"""Types of what is sent: that many bytes, or that many `Piece`s."""


class Params(ctypes.Structure):
    """ucp_params_t."""

    _fields_ = (
        ("field_mask", c_uint64), ("features", c_uint64), ("request_size", c_size_t),
        ("request_init", c_void_p), ("request_cleanup", c_void_p), ("tag_sender_mask", c_uint64),
        ("mt_workers_shared", c_int), ("estimated_num_eps", c_size_t),
        ("estimated_num_ppn", c_size_t), ("name", c_void_p), ("node_local_id", c_size_t),
    )  # fmt: skip


class WorkerParams(ctypes.Structure):
    """ucp_worker_params_t."""

    _fields_ = (
        ("field_mask", c_uint64), ("thread_mode", c_int), ("cpu_mask", c_uint64 * 16),
        ("events", c_uint), ("user_data", c_void_p), ("event_fd", c_int), ("flags", c_uint64),
        ("name", c_void_p), ("am_alignment", c_size_t), ("client_id", c_uint64),
    )  # fmt: skip


class EndpointParams(ctypes.Structure):
    """ucp_ep_params_t, up to its user_data."""

    _fields_ = (
        ("field_mask", c_uint64), ("address", c_void_p), ("err_mode", c_int),
        ("err_callback", c_void_p), ("err_argument", c_void_p), ("user_data", c_void_p),
    )  # fmt: skip


class ReceiveInfo(ctypes.Structure):
    """ucp_tag_recv_info_t."""

    _fields_ = (("sender_tag", c_uint64), ("length", c_size_t))


class RequestParam(ctypes.Structure):
    """ucp_request_param_t, up to its memh."""

    _fields_ = (
        ("op_attr_mask", c_uint32), ("flags", c_uint32), ("request", c_void_p),
        ("callback", c_void_p), ("datatype", c_uint64), ("user_data", c_void_p),
        ("reply_buffer", c_void_p), ("memory_type", c_int), ("recv_info", c_void_p),
        ("memh", c_void_p),
    )  # fmt: skip


class Piece(ctypes.Structure):
    """ucp_dt_iov_t."""

    _fields_ = (("buffer", c_void_p), ("length", c_size_t))


# A status (ucs_status_t) is one byte: the other bytes of its register may hold anything.
SENT = ctypes.CFUNCTYPE(None, c_void_p, c_status, c_size_t)
"""ucp_send_nbx_callback_t: request, status, user data."""
RECEIVED = ctypes.CFUNCTYPE(None, c_void_p, c_status, ctypes.POINTER(ReceiveInfo), c_size_t)
"""ucp_tag_recv_nbx_callback_t."""

c_pointer = c_size_t
"""A request, or a status instead: see `status_of`."""
_FUNCTIONS: dict[Any, dict[str, tuple[Any, ...]]] = {
    c_status: {
        "ucp_init_version": (c_uint, c_uint, c_void_p, c_void_p, c_void_p),
        "ucp_config_read": (c_void_p, c_void_p, c_void_p),
        "ucp_config_modify": (c_void_p, c_char_p, c_char_p),
        "ucp_worker_create": (c_void_p, c_void_p, c_void_p),
        "ucp_worker_get_address": (c_void_p, c_void_p, c_void_p),
        "ucp_worker_get_efd": (c_void_p, c_void_p),
        "ucp_worker_arm": (c_void_p,),
        "ucp_ep_create": (c_void_p, c_void_p, c_void_p),
        "ucp_request_check_status": (c_void_p,),
    },
    c_pointer: {
        "ucp_tag_send_nbx": (c_void_p, c_void_p, c_size_t, c_uint64, c_void_p),
        "ucp_tag_recv_nbx": (c_void_p, c_void_p, c_size_t, c_uint64, c_uint64, c_void_p),
        "ucp_ep_close_nbx": (c_void_p, c_void_p),
    },
    c_uint: {"ucp_worker_progress": (c_void_p,)},
    c_char_p: {"ucs_status_string": (c_status,)},
    None: {
        "ucp_worker_release_address": (c_void_p, c_void_p),
        "ucp_config_release": (c_void_p,),
        "ucp_request_free": (c_void_p,),
        "ucp_worker_destroy": (c_void_p,),
        "ucp_cleanup": (c_void_p,),
    },
}
"""By what they return, and their arguments."""


@functools.cache
def library() -> Any:
    """UCX. UserError where there is none."""
    wheel = str(Path(sys.prefix) / "lib" / "mpich" / _NAME)
    for name, mode in ((_NAME, os.RTLD_NOLOAD), (wheel, 0), (_NAME, 0)):
        try:
            ucx = ctypes.CDLL(name, mode=mode | os.RTLD_LAZY)
            break
        except OSError as error:
            why = error
    else:
        raise UserError(
            f"--channel ucx: there is no UCX here ({why}). MPICH's wheel brings it, as "
            "`osucaffe[mpi]` installs it; else install your system's (Debian: libucx0)"
        )
    for result, functions in _FUNCTIONS.items():
        for name, arguments in functions.items():
            function = getattr(ucx, name)
            function.restype, function.argtypes = result, arguments
    return ucx


def check(status: int, what: str) -> None:
    """UserError unless UCX says OK."""
    if status != OK:
        raise UserError(f"UCX: cannot {what}: {describe(status)}")


def describe(status: int) -> str:
    """A status in UCX's words."""
    words: bytes = library().ucs_status_string(status)
    return words.decode()


def status_of(pointer: int) -> int | None:
    """The status returned instead of a request; None if it is a request."""
    if not pointer:
        return OK
    status = pointer - (1 << 64)
    return status if _LAST_ERROR <= status < 0 else None


def make_context(settings: Mapping[str, str]) -> tuple[int, int]:
    """A context and a worker of it, for messages with tags. settings: of UCX, where the environment
    says nothing of them. UserError."""
    ucx, config, context, worker = library(), c_void_p(), c_void_p(), c_void_p()
    check(ucx.ucp_config_read(None, None, ctypes.byref(config)), "read its settings")
    try:
        for name, value in settings.items():
            if f"UCX_{name}" not in os.environ:
                changed = ucx.ucp_config_modify(config, name.encode(), value.encode())
                check(changed, f"take UCX_{name}={value}")
        given = Params(field_mask=FEATURES, features=TAG | WAKEUP)
        made = ucx.ucp_init_version(*_VERSION, ctypes.byref(given), config, ctypes.byref(context))
        text = ", ".join(f"UCX_{name}={value}" for name, value in settings.items())
        check(made, f"start ({text}, unless the environment says otherwise)")
    finally:
        ucx.ucp_config_release(config)
    params = WorkerParams(field_mask=THREAD_MODE, thread_mode=SERIALIZED)
    made = ucx.ucp_worker_create(context, ctypes.byref(params), ctypes.byref(worker))
    check(made, "make a worker")
    return context.value or 0, worker.value or 0
