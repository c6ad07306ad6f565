"""What the ranks run that test_gpu.py starts: communicators for device arrays, against NumPy.

Argument: "check" for a GPU each, "share" for all on one, "direct" for device arrays that are given
to MPI, also where it does not say that it takes them: UCX below it may.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from osucaffe.cli.launch.ranks import identify
from osucaffe.comm import create
from osucaffe.comm.algorithms import ALGORITHMS, OPERATIONS
from osucaffe.comm.communicator import Communicator
from osucaffe.comm.config import CommConfig
from osucaffe.comm.create import make_communicator
from osucaffe.comm.gpu import copy_engine
from osucaffe.comm.gpu.nccl import Nccl
from osucaffe.comm.gpu.on_stream import OnStream
from osucaffe.comm.hierarchical import Hierarchical
from osucaffe.comm.host import DTYPES
from osucaffe.comm.job.job import MpiJob, find_job
from osucaffe.comm.job.topology import discover
from osucaffe.comm.mpi import Mpi

from .collectives import check_result, check_swap, numbers, start, values

COUNTS = (1, 3, 1001, 65_537, 98_304, 3_000_001)
SEQUENCE = 300
NARROW = {"check": ("nccl", "auto", "mpi", "copy"), "share": ("ipc",), "direct": ("mpi",)}
SEQUENCES = {"check": ("ipc", "auto"), "share": ("ipc",), "direct": ("background",)}
"""Which communicators are tried in 16 bits, and which with many operations in a row."""


@functools.cache
def arrays_of(ranks: int, count: int, dtype: str) -> list[np.ndarray]:
    """What all ranks have, as float64."""
    return [numbers(values(rank, count, dtype)) for rank in range(ranks)]


def upload(cupy: Any, array: np.ndarray, stream: Any) -> Any:
    """A device array; one with an odd count begins beside a multiple of 16 bytes."""
    with stream:
        padded = cupy.zeros(array.size + 1, array.dtype)
        device = padded[array.size % 2 :][: array.size]
        device.set(array)
    return device


def check(cupy: Any, comm: Communicator, operation: str, count: int, dtype: str, root: int) -> None:
    """Run one operation on device arrays, on a stream, and compare."""
    stream = cupy.cuda.Stream(non_blocking=True)
    mine = upload(cupy, values(comm.rank, count, dtype), stream)
    start(comm, operation, mine, root, stream=stream).wait()
    stream.synchronize()
    arrays = arrays_of(comm.size, count, dtype)
    check_result(comm, operation, numbers(mine.get()), arrays, root)


def check_all(cupy: Any, made: dict[str, Communicator]) -> int:
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


def check_sequence(job: MpiJob, cupy: Any, comm: Communicator, most: int) -> int:
    """All-reduces of random sizes and types, one behind the other, while ranks now and then fall
    behind: right sums, and of numbers that are rounded the same bits on every rank."""
    random = np.random.default_rng(4)  # the same on every rank
    own = np.random.default_rng((5, job.rank))
    stream = cupy.cuda.Stream(non_blocking=True)
    arrays, rounded = [], []
    for _ in range(SEQUENCE):
        count, dtype = int(2 ** random.uniform(0, np.log2(most))), str(random.choice(DTYPES))
        arrays.append((upload(cupy, values(comm.rank, count, dtype), stream), dtype))
        rounded.append(upload(cupy, own.standard_normal(count).astype(np.float32), stream))
    stream.synchronize()
    for (array, _), other in zip(arrays, rounded, strict=True):
        comm.all_reduce(array, stream=stream)
        comm.all_reduce(other, stream=stream).wait()
        if own.random() < 0.05:
            time.sleep(own.uniform(0, 2e-3))
    stream.synchronize()
    for array, dtype in arrays:
        expected = arrays_of(comm.size, array.size, dtype)
        check_result(comm, "all_reduce", numbers(array.get()), expected, 0)
    sums = job.gather([zlib.crc32(array.get().tobytes()) for array in rounded])
    assert all(each == sums[0] for each in sums), "the ranks have other bits"
    return 2 * SEQUENCE


def captured(stream: Any, run: Callable[[], None]) -> Any:
    """A graph of what runs on the stream, which has run once."""
    run()
    stream.synchronize()
    stream.begin_capture()
    run()
    return stream.end_capture()


def check_graph(cupy: Any, comm: OnStream) -> int:
    """Operations of several sizes in one CUDA graph, which is replayed, between others."""
    counts = (1, 5, 4096, 100_003, 1_500_000)
    stream = cupy.cuda.Stream(non_blocking=True)
    arrays = [upload(cupy, np.zeros(count, np.float32), stream) for count in counts]

    def run() -> None:
        for array in arrays:
            comm.all_reduce(array, stream=stream).wait()

    graph = captured(stream, run)
    for turn in range(3):
        for array in arrays:
            array.set(values(comm.rank, array.size, "float32"), stream=stream)
        graph.launch(stream)
        graph.launch(stream)
        if turn == 1:  # an operation more: the next graph begins with the other slot
            run()
        stream.synchronize()
        for array in arrays:
            total = np.sum(arrays_of(comm.size, array.size, "float32"), axis=0)
            np.testing.assert_array_equal(array.get(), total * comm.size ** (1 + (turn == 1)))
    del graph
    return 3 * len(counts)


def check_large(cupy: Any, comm: OnStream) -> int:
    """Gradients whose parts are cut into pieces and 16-bit weights, in one CUDA graph that is
    replayed while ranks now and then fall behind: in every replay, other numbers."""
    own, stream = np.random.default_rng((6, comm.rank)), cupy.cuda.Stream(non_blocking=True)
    count, replays = 3 * comm.size * copy_engine.PIECE_BYTES // 4 + 5, 20
    start, stop = comm.part(count)
    with stream:
        index = cupy.arange(count, dtype=np.float32) % 5
        owner = cupy.zeros(count, np.uint16)
        for rank in range(comm.size):
            owner[slice(*comm.part(count, rank))] = rank
        gradients, weights = cupy.zeros(count, np.float32), cupy.zeros(count, np.uint16)
        wrong = cupy.zeros((), np.int64)

    def run() -> None:
        comm.reduce_scatter(gradients, stream=stream).wait()
        comm.all_gather(weights, stream=stream).wait()

    graph = captured(stream, run)
    for turn in range(replays):
        with stream:
            gradients[:] = index * (turn + 1) + comm.rank
            weights[:] = comm.rank + 100 * turn
        if own.random() < 0.3:
            time.sleep(own.uniform(0, 2e-3))
        graph.launch(stream)
        with stream:
            total = index * (comm.size * (turn + 1)) + comm.size * (comm.size - 1) // 2
            wrong += (gradients[start:stop] != total[start:stop]).sum()
            wrong += (weights != owner + 100 * turn).sum()
    stream.synchronize()
    assert not int(wrong), f"{int(wrong)} elements are wrong"
    return 2 * replays


def check_narrow(cupy: Any, comm: Communicator, bits: str) -> None:
    """float32 that 16 bits cannot tell from 1 arrives as 1, and other operations keep it.

    A rank alone sends nothing, so nothing is rounded there.
    """
    stream = cupy.cuda.Stream(non_blocking=True)
    for operation in ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather"):
        array = upload(cupy, np.full(70_001, 1 + 2**-12, np.float32), stream)
        getattr(comm, operation)(array, stream=stream).wait()
        stream.synchronize()
        reduces = comm.size > 1 and operation not in ("broadcast", "all_gather")
        whole = operation != "reduce_scatter"
        start, stop = (0, array.size) if whole else comm.part(array.size)
        if operation != "reduce" or comm.rank == 0:
            expected = comm.size if reduces else np.float32(1 + 2**-12)
            assert (array[start:stop].get() == expected).all(), f"{operation} in {bits}"


def main() -> None:
    mode = sys.argv[1]
    job: Any = find_job()
    with job.together():
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        gpu = 0 if mode == "share" else job.rank % count
        cupy.cuda.Device(gpu).use()
        topology = discover(job, *identify(gpu))

        def make(
            kind: str, bits: str = "float32", group: int = 0, *, background: bool = False,
            algorithm: str = "auto",
        ) -> Communicator:  # fmt: skip
            wanted = CommConfig(kind, algorithm, gradient_dtype=bits, group=group)
            return make_communicator(job, topology, wanted, background=background)

        if mode == "direct":
            create.cuda_aware = lambda mpi: True
            names = sorted({name for known in ALGORITHMS.values() for name in known})
            made = {name: make("mpi", algorithm=name) for name in ("auto", "native", *names)}
            made["background"] = make("mpi", background=True)
            assert all(isinstance(each, Mpi) for each in made.values())
            if job.size > 2:
                made["groups of 2"] = make("auto", group=2, background=True)
        elif mode == "share":
            made = {kind: make(kind) for kind in ("ipc", "mpi", "auto")}
        else:
            copy_engine.SMALL = 1000  # so that most arrays here go by copies
            made = {kind: make(kind) for kind in ("nccl", "ipc", "mpi", "auto", "copy")}
            made["background mpi"] = make("mpi", background=True)
            local = Nccl(job.world.Split(job.rank))
            made["hierarchical"] = Hierarchical(
                make("mpi"), local, make("nccl"), list(range(job.size)), rails=None
            )
            if job.size > 2:  # as hosts with two GPUs: NCCL inside, MPI across
                made["groups of 2"] = make("auto", group=2, background=True)
        narrow = {
            f"{kind} {bits}": make(kind, bits, background=kind == "mpi")
            for kind in NARROW[mode]
            for bits in ("float16", "bfloat16")
        }
        for name, comm in narrow.items():
            check_narrow(cupy, comm, name)
        for comm in made.values():
            if comm.has_all_to_all:
                stream = cupy.cuda.Stream(non_blocking=True)
                check_swap(comm, partial(upload, cupy), stream)
        made |= narrow
        done = check_all(cupy, made)
        for name, comm in made.items():
            if isinstance(comm, OnStream):
                done += check_graph(cupy, comm)
                if name in ("copy", "nccl"):
                    done += check_large(cupy, comm)
        for kind in SEQUENCES[mode]:
            done += check_sequence(job, cupy, made[kind], 20_000 if mode == "share" else 1_000_000)
        for comm in made.values():
            comm.close()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        print(f"rank {job.rank}: {done} cases right on GPU {gpu} of {visible}\n", end="")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
