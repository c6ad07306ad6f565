"""Where nets run: the device of `gpu=`, and arrays of other libraries that lie on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..backends.backend import Backend
from ..errors import UserError


def backend(gpu: int | None, precision: str | None, threads: int | None) -> Backend:
    """The CPU (gpu=None), or a GPU by its number. precision: "fp32", "tf32", "bf16" or "fp16"
    (None: tf32 where the GPU has it). threads: of the CPU (None: as OMP_NUM_THREADS says, or one
    for each core). UserError."""
    if threads is not None and threads < 1:
        raise UserError(f"threads={threads}: give at least 1")
    if gpu is not None:
        if isinstance(gpu, bool) or not str(gpu).isdecimal():
            raise UserError(f"gpu={gpu}: give the number of one GPU, such as 0")
        from ..backends.cuda import Cuda

        return Cuda(int(gpu), precision)
    if precision not in (None, "fp32"):
        raise UserError(f"precision={precision!r}: the CPU computes in fp32; give gpu=0, too")
    from ..backends.cpu import Cpu

    return Cpu(threads=threads)


@contextmanager
def computing(backend: Backend) -> Iterator[None]:
    """Let this thread use a GPU, after what it has enqueued there; at the end all is done."""
    backend.stream.wait_event(backend.xp.cuda.get_current_stream().record())
    with backend.computing_arrays(backend.stream):
        yield


def is_foreign(values: Any) -> bool:
    """Whether it is an array of another library than NumPy, which DLPack can pass on."""
    return not isinstance(values, np.ndarray) and hasattr(values, "__dlpack__")


def numbers(values: Any, xp: Any, name: str) -> Any:
    """An array of numbers, NumPy's; if xp is CuPy, what lies on a GPU stays there, as CuPy's.
    UserError for what is none."""
    if is_foreign(values):
        on_host = values.__dlpack_device__()[0] == _HOST
        if not on_host and xp is np:
            raise UserError(f"{name}: it lies on a GPU, and is to be in the host's memory here")
        values = (np if on_host else xp).from_dlpack(values)
    elif not isinstance(values, np.ndarray):
        try:
            values = np.asarray(values)
        except ValueError as error:  # rows of several lengths
            raise UserError(f"{name}: {error}") from None
    if values.dtype.kind not in "fiub":
        raise UserError(f"{name}: {values.dtype} is not a type of numbers that a net computes with")
    return values


_HOST = 1
"""DLPack's kDLCPU."""


def library_of(values: Any) -> Callable[[Any], Any]:
    """What makes arrays of the same library from others, without a copy."""
    package = sys.modules[type(values).__module__.partition(".")[0]]
    return getattr(package, "from_dlpack", None) or values.__array_namespace__().from_dlpack
