"""`osucaffe tune`: measures communication on this machine, and writes a tuning table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ... import plugins
from ...comm.communicator import Communicator
from ...comm.create import Maker
from ...comm.job.job import MpiJob, find_job
from ...comm.job.topology import Topology, discover
from ...comm.tuning import measure, table
from ...comm.tuning.measure import measure_gpus
from ...comm.tuning.table import Choice, Selection
from ...errors import UserError
from ..launch import ranks
from ..options import Device
from .options import Tune


def run(options: Tune) -> None:
    """Measure, write, and say where."""
    job = find_job()
    with job.together():
        ranks.check_size(options.ranks, job)
        if not isinstance(job, MpiJob) or job.size == 1:
            raise UserError("tune measures several ranks: add --ranks N, or start it with mpiexec")
        sizes = [nbytes for nbytes in measure.SIZES if nbytes <= max(options.max_mb * 2**20, 4)]

        def report(line: str) -> None:
            if job.rank == 0:
                print(line, flush=True)

        if options.designs:
            plugins.need(plugins.ACTIONS, "compare_designs")(options, options.designs, job, report)
            return
        if options.gpu is not None:
            rows, level = _measure_gpus(options, job, sizes, report), table.GPU
        else:
            topology = discover(job)
            level = "node" if len(topology.hosts) == 1 else "network"
            rows = measure.measure(job, partial(_make, job, topology), sizes, report)
        path = Path(options.out) if options.out else table.user_table()
        if job.rank == 0:
            measure.merge(path, level, job.size, rows)
            print(f"wrote {path}: level {level}, {job.size} ranks")


def _make(job: MpiJob, topology: Topology, choice: Choice) -> Communicator:
    """A communicator that uses an algorithm."""
    return Maker(job, topology, Selection(choice.algorithm, chunk=choice.chunk)).flat()


def _measure_gpus(
    options: Tune, job: MpiJob, sizes: list[int], report: Callable[[str], None]
) -> dict[str, list[list[Any]]]:
    """The rows for the GPUs of this host."""
    from ...backends.cuda.runtime.startup import import_cupy
    from ...comm.gpu.ipc import Ipc
    from ...comm.gpu.nccl import Nccl

    device, topology = ranks.assign_devices(Device(gpu=options.gpu), job)
    if len(topology.hosts) > 1 or topology.shares_gpu:
        raise UserError("tune --gpu measures ranks of one machine with one GPU each")
    cupy = import_cupy()
    cupy.cuda.Device(int(device.gpu or 0)).use()
    stream = cupy.cuda.Stream(non_blocking=True)
    comms = {"nccl": Nccl(job.world), "ipc": Ipc(job.world)}
    rows = measure_gpus(job, comms, partial(cupy.zeros, dtype="float32"), stream, sizes, report)
    for comm in comms.values():
        comm.close()
    return rows
