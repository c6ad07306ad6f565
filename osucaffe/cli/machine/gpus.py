"""The description of GPUs and their libraries for `device_query`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import UserError


def describe_gpus(option: str) -> dict[str, str]:
    """A row for each requested GPU ("0,1", "all") and each library, or one for what is missing.

    UserError if `option` names none that exist.
    """
    from ...backends.cuda.runtime.startup import import_cupy

    try:
        cupy = import_cupy()
    except UserError as error:
        return {"GPU": f"none: {error}"}
    runtime = cupy.cuda.runtime
    count = runtime.getDeviceCount()
    try:
        chosen = range(count) if option == "all" else [int(part) for part in option.split(",")]
    except ValueError:
        raise UserError(f'--gpu {option}: give numbers with commas, or "all"') from None
    rows = {}
    for number in chosen:
        if not 0 <= number < count:
            raise UserError(f"--gpu {number}: there are {count} GPUs, counted from 0")
        rows[f"GPU {number}"] = _gpu(cupy, number)
    return rows | {
        "Driver": _driver(runtime),
        "CUDA": f"{_dotted(runtime.runtimeGetVersion(), 1000, 10)}, CuPy {cupy.__version__}",
        "cuDNN": _version_or_missing(_cudnn),
        "cuBLAS": _version_or_missing(_cublas),
        "NCCL": nccl_version(),
    }


def _gpu(cupy: Any, number: int) -> str:
    props = cupy.cuda.runtime.getDeviceProperties(number)
    free, total = cupy.cuda.Device(number).mem_info
    return (
        f"{props['name'].decode()}, compute capability {props['major']}.{props['minor']}, "
        f"{props['multiProcessorCount']} multiprocessors, "
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    )


def _driver(runtime: Any) -> str:
    """The driver's version, if the kernel gives it, and its CUDA version."""
    newest = f"for CUDA up to {_dotted(runtime.driverGetVersion(), 1000, 10)}"
    try:
        line = Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    except OSError:
        return newest
    versions = [word for word in line.split() if word[:1].isdigit() and "." in word]
    return f"{versions[0]}, {newest}" if versions else newest


def _cudnn() -> str:
    from ...backends.cuda.libraries import cudnn

    return cudnn.version()


def _cublas() -> str:
    from cupy_backends.cuda.libs import cublas

    handle = cublas.create()
    try:
        number = cublas.getVersion(handle)
    finally:
        cublas.destroy(handle)
    return f"{_dotted(number, 10000, 100)}.{number % 100}"


def nccl_version() -> str:
    """NCCL's version, or a note that it is missing."""
    return _version_or_missing(_nccl)


def _nccl() -> str:
    from ...backends.cuda.runtime.startup import load_nccl

    number = load_nccl().get_version()
    return f"{_dotted(number, 10000, 100)}.{number % 100}"


def _dotted(number: int, major: int, minor: int) -> str:
    """13000 (major 1000, minor 10) is 13.0; 91300 (10000, 100) is 9.13."""
    return f"{number // major}.{number % major // minor}"


def _version_or_missing(version: Callable[[], str]) -> str:
    """A library's version, or why it cannot be used."""
    try:
        return version()
    except UserError as error:
        return f"none: {error}"
    except (ImportError, OSError, RuntimeError) as error:
        return f'cannot be loaded ({error}): pip install "osucaffe[cuda13]" (or [cuda12])'
