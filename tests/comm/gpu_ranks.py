"""What the ranks run that test_gpu.py starts: communicators for device arrays, against NumPy.

Argument: "check" for a GPU each, "share" for all on one.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from osucaffe.cli.ranks import identify
from osucaffe.comm.algorithms import OPERATIONS
from osucaffe.comm.communicator import Communicator
from osucaffe.comm.create import Wanted, make_communicator
from osucaffe.comm.hierarchical import Hierarchical
from osucaffe.comm.host import DTYPES
from osucaffe.comm.job import MpiJob, find_job
from osucaffe.comm.nccl import Nccl
from osucaffe.comm.topology import discover

from .collectives import check_result, numbers, values

COUNTS = (1, 3, 1001, 65_537, 98_304, 3_000_001)


def check(cupy: Any, comm: Communicator, operation: str, count: int, dtype: str, root: int) -> None:
    """Run one operation on device arrays, on a stream, and compare."""
    arrays = [numbers(values(rank, count, dtype)) for rank in range(comm.size)]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        padded = cupy.zeros(count + 1, dtype)
        mine = padded[count % 2 :][:count]  # odd counts begin beside a multiple of 16 bytes
        mine.set(values(comm.rank, count, dtype))
    rooted = operation in ("broadcast", "reduce")
    handle = getattr(comm, operation)(mine, *([root] if rooted else []), stream=stream)
    handle.wait()
    stream.synchronize()
    check_result(comm, operation, numbers(mine.get()), arrays, root)


def check_all(job: MpiJob, cupy: Any, made: dict[str, Communicator]) -> int:
    """Every operation, type and size over each communicator."""
    done = 0
    for name, comm in made.items():
        for operation in OPERATIONS:
            for index, count in enumerate(COUNTS):
                for dtype in DTYPES if count == 1001 else ("float32",):
                    try:
                        check(cupy, comm, operation, count, dtype, index % comm.size)
                    except AssertionError as error:
                        raise AssertionError(f"{name} {operation} {count} {dtype}") from error
                    done += 1
    return done


def main() -> None:
    mode = sys.argv[1]
    job: Any = find_job()
    with job.together():
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        gpu = 0 if mode == "share" else job.rank % count
        cupy.cuda.Device(gpu).use()
        topology = discover(job, *identify(gpu))
        kinds = (
            ["ipc", "mpi", "auto"]
            if mode == "share"
            else ["nccl", "ipc", "mpi", "nccl+ipc", "copy"]
        )
        made = {kind: make_communicator(job, topology, Wanted(kind)) for kind in kinds}
        if mode != "share":
            made["background mpi"] = make_communicator(
                job, topology, Wanted("mpi"), background=True
            )
            whole = make_communicator(job, topology, Wanted("mpi"))
            local = Nccl(job.world.Split(job.rank))
            rails = make_communicator(job, topology, Wanted("nccl"))
            made["hierarchical"] = Hierarchical(
                whole, local, rails, list(range(job.size)), rails=None
            )
        done = check_all(job, cupy, made)
        for comm in made.values():
            if not isinstance(comm, Hierarchical):
                comm.close()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        print(f"rank {job.rank}: {done} cases right on GPU {gpu} of {visible}\n", end="")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
