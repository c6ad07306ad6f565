"""`osucaffe device_query`: what osucaffe can run on, here or on the ranks of a job."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import numpy as np

from ...api.tables import table
from ...backends.cpu import Cpu
from ...comm.job.job import cuda_aware, find_job, start_mpi
from .. import output
from ..launch import ranks
from ..options import Device
from .gpus import describe_gpus, nccl_version
from .options import DeviceQuery


def run(options: DeviceQuery) -> None:
    """Print it."""
    if options.mpi:
        _show_job(options)
    else:
        _show_machine(options)


def _show_job(options: DeviceQuery) -> None:
    """The locations of the ranks, and the links between them."""
    job = find_job()
    with job.together():
        gpus = describe_gpus("all")
        device = Device(gpu=options.gpu if "GPU 0" in gpus else None)
        _, topology = ranks.assign_devices(device, job)
        if job.rank:
            return
        mpi = start_mpi()
        version = mpi.Get_library_version().partition("\n")[0].rstrip("\0 ")
        if options.json:
            output.print_json(
                {
                    "MPI": version,
                    "CUDA-aware": cuda_aware(mpi),
                    "NCCL": nccl_version(),
                    "ranks": [
                        {
                            "rank": peer.rank,
                            "host": peer.hostname,
                            "process": peer.process,
                            "cores": peer.cores,
                            "gpu": peer.gpu or None,
                        }
                        for host in topology.hosts
                        for peer in host
                    ],
                    "levels": len(topology.levels()),
                }
            )
            return
        print(f"MPI:   {version}, {'CUDA-aware' if cuda_aware(mpi) else 'not CUDA-aware'}")
        print(f"NCCL:  {nccl_version()}")
        for host in topology.hosts:
            print(f"Host {host[0].hostname}: {len(host)} of {job.size} ranks")
            for peer in host:
                gpu = f", {peer.gpu_name} {peer.gpu}" if peer.gpu else ""
                print(f"  rank {peer.rank}: process {peer.process}, {peer.cores} cores{gpu}")
        print(f"Levels: {len(topology.levels())}")
        print(_links())


def _links() -> str:
    """The links between this host's GPUs, in the terms of nvidia-smi."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "Links: no GPUs"
    return f"Links of this host's GPUs:\n{done.stdout.rstrip()}"


def _show_machine(options: DeviceQuery) -> None:
    backend = Cpu()
    rows = {
        "CPU": _cpu_name(),
        "Threads": f"{backend.threads} of {os.cpu_count()}",
        "Memory": _memory(),
        "oneDNN": _onednn(backend),
        "NumPy": f"{np.__version__}, {_blas()}",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    }
    rows |= describe_gpus(options.gpu)
    if options.json:
        output.print_json(rows)
        return
    print(*table("<<", *((f"{name}:", text) for name, text in rows.items())), sep="\n")


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


def _onednn(backend: Cpu) -> str:
    library = backend.onednn
    if library is None:
        return "none found: NumPy does everything (pip install onednn-cpu-gomp)"
    return f"{library.version}, {library.instruction_set}"


def _blas() -> str:
    from threadpoolctl import threadpool_info

    libraries = [
        f"{library['internal_api']} {library['version']} ({library.get('architecture', '?')})"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
    return ", ".join(libraries) or "no BLAS known"
