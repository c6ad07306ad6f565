"""Owns the CUDA driver's library, for calls that CuPy does not offer."""

from __future__ import annotations

import ctypes
import functools


@functools.cache
def cuda_driver() -> ctypes.CDLL:
    """The library. Its functions return a status: see `check`."""
    return ctypes.CDLL("libcuda.so.1")


def check(status: int, what: str) -> None:
    """Raise if a call failed. what: was to be done, or to be known."""
    if status:
        raise RuntimeError(f"{what}: the CUDA driver says error {status}")
