"""How a program comes to use a GPU: the import of CuPy, the start of the device, and what is
said where something is missing."""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from typing import Any

from ....errors import UserError
from .cache import cache_folder

DRIVERS = {13: 580, 12: 525}
"""The first driver of each CUDA that osucaffe has an extra for."""
MISSING = {
    "driver": "no NVIDIA driver is there (libcuda.so.1): install it, or run on the CPU",
    "newer driver": (
        "the NVIDIA driver knows CUDA {driver}, this CuPy is of CUDA {cuda}: install driver "
        "{least} or later, or in a new environment the extra for an older driver: "
        'pip install "osucaffe[cuda12]"'
    ),
    "GPU": "no GPU is there: check nvidia-smi and CUDA_VISIBLE_DEVICES, or run on the CPU",
    "use of a GPU": "no GPU can be used ({error}): check the driver with nvidia-smi",
    "driver and CuPy": (
        "no NVIDIA driver is there (libcuda.so.1): leave out --gpu to run on the CPU; a GPU also "
        'needs CuPy: pip install "osucaffe[cuda13]" ([cuda12] before driver 580)'
    ),
    "CuPy": 'a GPU needs CuPy: pip install "osucaffe[cuda13]" ([cuda12] before driver 580)',
    "CuPy that loads": (
        "CuPy cannot be loaded ({error}): remove what is installed of it (pip list shows cupy, "
        'cupy-cuda...), then pip install "osucaffe[cuda13]" ([cuda12] before driver 580)'
    ),
    "NVRTC": 'CUDA\'s compiler cannot be loaded ({error}): pip install "osucaffe[cuda{major}]"',
    "cuBLAS": 'cuBLAS cannot be loaded ({error}): pip install "osucaffe[cuda{major}]"',
    "NCCL": 'NCCL, for several GPUs, is not there: pip install "osucaffe[nccl{major}]"',
}
"""What is said where this is missing, with the command that repairs it. Of cuDNN,
libraries/cudnn.py says it."""


def missing(what: str, error: object = "", **known: object) -> UserError:
    """What to raise where one of MISSING is. error: what the loader says."""
    lines = str(error).strip(" =\n").splitlines()
    return UserError(MISSING[what].format(error=lines[0] if lines else "", **known))


def begin(number: int) -> None:
    """Begin to start the GPU of this number in a thread: importing CuPy and making the device's
    context takes half a second. What is wrong is reported where the GPU is used first."""
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
    # The driver has 8 queues, and streams that share one wait for each other: while AlexNet trains,
    # JPEG engines decode 1,200 images per second, and 43,000 with a queue for each stream.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise _unloadable(error) from None
        raise missing("CuPy" if _has_driver() else "driver and CuPy") from None
    except (ImportError, RuntimeError) as error:
        raise _unloadable(error) from None
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise _unusable(runtime, str(error)) from None
    if not count:
        raise missing("GPU")
    _load_nvrtc(_major(runtime))
    return cupy


def _has_driver() -> bool:
    """Whether the system has a driver for NVIDIA's GPUs."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _unloadable(error: Exception) -> UserError:
    # CuPy frames the system's own words, which say more: "Original error: ImportError: ..."
    return missing("CuPy that loads", str(error).partition("Original error:")[2] or error)


def _unusable(runtime: Any, error: str) -> UserError:
    """What is wrong, from what CUDA says when it counts the GPUs."""
    if "InsufficientDriver" in error:
        driver, cuda = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        if not driver:  # so the system has none
            return missing("driver")
        least = DRIVERS.get(cuda // 1000, "of that CUDA")
        return missing("newer driver", driver=_dotted(driver), cuda=_dotted(cuda), least=least)
    return missing("GPU") if "NoDevice" in error else missing("use of a GPU", error)


def _dotted(version: int) -> str:
    """13020 is 13.2."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _major(runtime: Any) -> int:
    """The CUDA that CuPy is of: 12 or 13."""
    version: int = runtime.runtimeGetVersion()
    return version // 1000


def _load_nvrtc(major: int) -> None:
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:  # CuPy raises the one or the other
        raise missing("NVRTC", error, major=major) from None


def load_cublas() -> int:
    """Let CuPy load cuBLAS. The CUDA that it is of. UserError where it is not there."""
    from cupy.cuda import runtime

    major = _major(runtime)
    try:
        from cupy_backends.cuda.libs import cublas  # noqa: F401
    except (ImportError, RuntimeError) as error:
        raise missing("cuBLAS", error, major=major) from None
    return major


def load_nccl() -> Any:
    """CuPy's NCCL. UserError where it is not there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns of what is said here
        from cupy.cuda import nccl, runtime
    if not nccl.available:
        raise missing("NCCL", major=_major(runtime))
    return nccl
