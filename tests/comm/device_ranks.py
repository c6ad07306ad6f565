"""What the ranks run that test_kernels.py starts: MPI that takes device arrays, without a GPU.

Host memory is in the place of a GPU's. NumPy's arithmetic refuses such arrays; what is enqueued on
a stream happens when somebody waits for it and not before; and a thread has to choose the GPU.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any

import numpy as np

from osucaffe.backends.cuda.runtime import device as gpu
from osucaffe.comm import create
from osucaffe.comm.algorithms import OPERATIONS
from osucaffe.comm.communicator import Communicator
from osucaffe.comm.create import Maker
from osucaffe.comm.gpu import kernels
from osucaffe.comm.gpu.kernels import DeviceMath
from osucaffe.comm.host import HostMath
from osucaffe.comm.job.job import MpiJob, find_job
from osucaffe.comm.job.topology import Location, Topology
from osucaffe.comm.mpi import Mpi
from osucaffe.comm.staged import Staged
from osucaffe.comm.tuning.table import Selection
from tests.backends.cuda.devices import H200

from .collectives import cases, check_result, numbers, start, values


class Array(np.ndarray):
    """An array in device memory."""

    __array_ufunc__ = None


class Device:
    """A GPU, which a thread has to choose."""

    chosen = threading.local()

    def __init__(self) -> None:
        self.use()

    def use(self) -> None:
        self.chosen.yes = True


class Stream:
    """A stream that does nothing before somebody waits for it; its events are itself."""

    def __init__(self, **_: bool) -> None:
        self.work: list[Callable[[], None]] = []

    def record(self) -> Stream:
        return self

    def synchronize(self) -> None:
        for each in self.work:
            each()
        self.work = []


def empty(count: int, dtype: Any) -> np.ndarray:
    assert Device.chosen.yes, "this thread has not chosen the GPU"
    return np.full(count, 85, dtype).view(Array)


def kernel(name: str, function: str, dtype: str) -> Any:
    """The sum of device.cu, on the host."""
    assert (name, function) == ("device", "add")

    def call(blocks: Any, threads: Any, arguments: Any, stream: Stream) -> None:
        assert Device.chosen.yes, "this thread has not chosen the GPU"
        target, source, count = arguments
        assert target.dtype.name == source.dtype.name == dtype
        assert isinstance(target, Array)
        assert isinstance(source, Array)
        x, y = target.view(np.ndarray)[:count], source.view(np.ndarray)[:count]
        stream.work.append(lambda: HostMath().add(x, y))

    return call


def refuse(comm: Mpi, operation: str, array: Any, root: int) -> None:
    raise AssertionError(f"MPI's own non-blocking {operation} may not take device arrays")


def check_case(comm: Communicator, operation: str, count: int, dtype: str, root: int) -> None:
    """Run one operation on an array that its stream has yet to write, and compare."""
    arrays = [numbers(values(rank, count, dtype)) for rank in range(comm.size)]
    stream, mine = Stream(), np.zeros(count, dtype)
    stream.work.append(lambda: np.copyto(mine, values(comm.rank, count, dtype)))
    start(comm, operation, mine.view(Array), root, stream=stream).wait()
    check_result(comm, operation, numbers(mine), arrays, root)


def check_algorithms(job: MpiJob) -> int:
    """Each operation, algorithm, type and size, in the foreground and in the background."""
    made: dict[tuple[str, bool], Communicator] = {}
    done = 0
    for operation, name, count, dtype in cases([1, 3, 777, 40_001]):
        for background in (False, True):
            if (name, background) not in made:
                made[name, background] = Mpi(
                    job.world,
                    math=DeviceMath(),
                    selection=Selection(name, chunk=4096),
                    background=background,
                )
            try:
                check_case(made[name, background], operation, count, dtype, done % job.size)
            except AssertionError as error:
                raise AssertionError(f"{operation} {name} {count} {dtype} {background}") from error
            done += 1
    for each in made.values():
        each.close()
    return done


def check_choice(job: MpiJob) -> None:
    """Device arrays go to MPI where it takes them on every rank, and else through host memory."""
    places = tuple(Location(each, each, "here", 1, gpu=str(each)) for each in range(job.size))
    topology = Topology(places[job.rank], places)
    for refuses in (None, job.size - 1):
        create.cuda_aware = lambda mpi, refuses=refuses: job.rank != refuses
        maker = Maker(job, topology, Selection(), background=True)
        comm = maker.flat()
        assert type(comm) is (Mpi if refuses is None else Staged)
        comm.close()
    create.cuda_aware = lambda mpi: True
    pairs: list[Hashable] = [rank // 2 for rank in range(job.size)]
    everyone: list[Hashable] = [0] * job.size
    comm = Maker(job, topology, Selection(), background=True).composed([pairs, everyone])
    for operation in OPERATIONS:
        for count in (1, 40_001):
            check_case(comm, operation, count, "float32", job.size - 1)
    comm.close()


def main() -> None:
    cuda = SimpleNamespace(Device=Device, Stream=Stream)
    sys.modules["cupy"] = SimpleNamespace(cuda=cuda, empty=empty)  # type: ignore[assignment]
    kernels.kernel = kernel  # type: ignore[assignment]
    gpu.current = lambda: H200
    Mpi._run_native = refuse  # type: ignore[method-assign]
    job: Any = find_job()
    with job.together():
        done = check_algorithms(job)
        check_choice(job)
    print(f"rank {job.rank}: {done} cases right\n", end="")


if __name__ == "__main__":
    main()
