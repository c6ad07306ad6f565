"""The message of a GPU that is out of memory, whichever library finds it out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ....errors import UserError

SIGNS = ("out of memory", "alloc_failed", "device_allocation_failed")
"""How CUDA and CuPy, cuBLAS and cuDNN say so."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether a library's error is of this kind."""
    return any(sign in str(error).lower() for sign in SIGNS)


_P = ParamSpec("_P")
_T = TypeVar("_T")


def translate_oom(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """The function, except that a library's error of this kind becomes a UserError."""

    @functools.wraps(function)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"the GPU is out of memory ({str(error).strip().splitlines()[0]}): lower the "
                "batch size, choose a 16-bit precision, or end what else runs there (nvidia-smi)"
            ) from None

    return run
