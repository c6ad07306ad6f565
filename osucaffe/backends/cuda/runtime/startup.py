"""Owns how a program comes to use a GPU: the import of CuPy, and the start of the device."""

from __future__ import annotations

import os
import threading
from typing import Any

from ....errors import UserError
from .cache import cache_folder


def begin(number: int) -> None:
    """Begin to start the GPU of this number, beside what follows: importing CuPy and making the
    device's context takes half a second. What is wrong is told where the GPU is used first."""
    threading.Thread(target=_start, args=(number,), name="GPU start", daemon=True).start()


def _start(number: int) -> None:
    try:
        cupy = import_cupy()
        cupy.cuda.Device(number).use()
        cupy.cuda.runtime.free(0)  # which makes the context
    except Exception:
        return


def import_cupy() -> Any:
    """CuPy, where there is a GPU that it can use. UserError says what is missing otherwise."""
    os.environ.setdefault("CUPY_CACHE_DIR", str(cache_folder() / "cupy"))
    try:
        import cupy
    except ModuleNotFoundError:
        raise UserError(
            '--gpu needs CuPy: pip install "osucaffe[cuda13]" (or [cuda12] for an older driver)'
        ) from None
    except ImportError as error:
        raise UserError(
            f"CuPy cannot be loaded ({str(error).strip().splitlines()[0]}): install the NVIDIA "
            'driver, and CUDA\'s libraries with pip install "osucaffe[cuda13]" (or [cuda12])'
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        remedy = "check the driver with nvidia-smi, or leave out --gpu"
        if "InsufficientDriver" in str(error):
            remedy = (
                "install the NVIDIA driver, or where there is one, osucaffe[cuda12] instead of "
                "[cuda13], which needs driver 580 or later"
            )
        raise UserError(f"no GPU can be used ({error}): {remedy}") from None
    if not count:
        raise UserError("no GPU is there: check nvidia-smi and CUDA_VISIBLE_DEVICES")
    return cupy
