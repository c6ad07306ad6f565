"""Tell what osucaffe would run on: CPU, memory, libraries, GPUs."""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--gpu", metavar="IDS", default="all", help='GPUs: "0,1" (default: all)')


def run(args: argparse.Namespace) -> None:
    """Print it."""
    import numpy as np

    from ..backends.cpu import Cpu

    backend = Cpu()
    rows = {
        "CPU": _cpu_name(),
        "Threads": f"{backend.threads} of {os.cpu_count()}",
        "Memory": _memory(),
        "oneDNN": _onednn(backend),
        "NumPy": f"{np.__version__}, {_blas()}",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    }
    rows |= _gpus(args.gpu)
    width = max(map(len, rows)) + 1
    for name, text in rows.items():
        print(f"{name + ':':{width}} {text}")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return "unknown"
    return f"{total / 2**30:.1f} GiB"


def _onednn(backend: object) -> str:
    library = getattr(backend, "onednn", None)
    if library is None:
        return "none found: NumPy does everything (pip install onednn-cpu-gomp)"
    return f"{library.version}, {library.instruction_set}"


def _blas() -> str:
    from threadpoolctl import threadpool_info

    found = [
        f"{library['internal_api']} {library['version']} ({library.get('architecture', '?')})"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    return ", ".join(found) or "no BLAS known"


def _gpus(wanted: str) -> dict[str, str]:
    """A row for each GPU that CuPy sees, or one that says why there is none."""
    from ..errors import UserError

    try:
        import cupy
    except ImportError:
        return {"GPU": 'none looked for: CuPy is not there (pip install "osucaffe[cuda13]")'}
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return {"GPU": f"none: {error}"}
    try:
        chosen = range(count) if wanted == "all" else [int(part) for part in wanted.split(",")]
    except ValueError:
        raise UserError(f'--gpu {wanted}: give numbers with commas, or "all"') from None
    rows = {}
    for number in chosen:
        if not 0 <= number < count:
            raise UserError(f"--gpu {number}: there are {count} GPUs, counted from 0")
        found = runtime.getDeviceProperties(number)
        rows[f"GPU {number}"] = (
            f"{found['name'].decode()}, compute {found['major']}.{found['minor']}, "
            f"{found['totalGlobalMem'] / 2**30:.1f} GiB, {found['multiProcessorCount']} SMs"
        )
    return rows or {"GPU": "none"}
