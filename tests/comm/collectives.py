"""What the ranks run that test_algorithms.py starts: a table of cases, each against NumPy.

Every rank makes the arrays of all ranks by itself, so it knows the right answer.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np

from osucaffe.comm.algorithms import ALGORITHMS, OPERATIONS
from osucaffe.comm.communicator import Communicator, Handle
from osucaffe.comm.create import Maker
from osucaffe.comm.host import DTYPES, HostMath, widen
from osucaffe.comm.job.job import MpiJob, find_job
from osucaffe.comm.job.topology import Location, Topology
from osucaffe.comm.mpi import Mpi
from osucaffe.comm.tuning.table import NATIVE, Selection


def values(rank: int, count: int, dtype: str) -> np.ndarray:
    """A rank's array: small whole numbers, which every type adds exactly."""
    numbers = np.random.default_rng((rank, count)).integers(-4, 5, count)
    if dtype != "uint16":
        return numbers.astype(dtype)
    bits = np.empty(count, np.uint16)
    HostMath().narrow(numbers.astype(np.float32), bits)
    return bits


def numbers(array: np.ndarray) -> np.ndarray:
    """The values as float64."""
    if array.dtype != np.uint16:
        return array.astype(np.float64)
    wide = np.empty(array.size, np.float32)
    widen(array, wide)
    return wide.astype(np.float64)


def start(comm: Communicator, operation: str, array: Any, root: int, **options: Any) -> Handle:
    """Call an operation, with the root if it has one."""
    rooted = operation in ("broadcast", "reduce")
    handle: Handle = getattr(comm, operation)(array, *([root] if rooted else []), **options)
    return handle


def check_case(comm: Communicator, operation: str, count: int, dtype: str, root: int) -> None:
    """Run one operation and compare."""
    arrays = [numbers(values(rank, count, dtype)) for rank in range(comm.size)]
    mine = values(comm.rank, count, dtype)
    start(comm, operation, mine, root).wait()
    check_result(comm, operation, numbers(mine), arrays, root)


def check_result(
    comm: Communicator, operation: str, got: np.ndarray, arrays: list[np.ndarray], root: int
) -> None:
    """Compare what a rank got with what NumPy makes of all ranks' arrays."""
    total, count = np.sum(arrays, axis=0), len(got)
    start, stop = comm.part(count)
    if operation == "broadcast":
        np.testing.assert_array_equal(got, arrays[root])
    elif operation == "reduce":
        if comm.rank == root:
            np.testing.assert_array_equal(got, total)
    elif operation == "all_reduce":
        np.testing.assert_array_equal(got, total)
    elif operation == "reduce_scatter":
        np.testing.assert_array_equal(got[start:stop], total[start:stop])
    else:
        parts = [comm.part(count, rank) for rank in range(comm.size)]
        assert np.sum([stop - start for start, stop in parts]) == count
        for (start, stop), array in zip(parts, arrays, strict=True):
            np.testing.assert_array_equal(got[start:stop], array[start:stop])


def check_swap(comm: Communicator, upload: Any = None, stream: Any = None) -> None:
    """Swap parts that tell where they come from and go to. upload: makes a device array."""
    array = np.zeros((2, comm.size, 5), np.float32)
    places = [comm.part(5 * comm.size, rank)[0] // 5 for rank in range(comm.size)]
    for rank, place in enumerate(places):
        array[0, place] = 100 * comm.rank + rank
    given = array[0].copy()
    if upload is None:
        comm.all_to_all(array.reshape(-1)).wait()
    else:
        device = upload(array.reshape(-1), stream)
        comm.all_to_all(device, stream).wait()
        stream.synchronize()
        array = device.get().reshape(array.shape)
    np.testing.assert_array_equal(array[0], given)
    for rank, place in enumerate(places):
        if rank != comm.rank:
            np.testing.assert_array_equal(array[1, place], 100 * rank + comm.rank)


def check_large(comm: Communicator, count: int) -> None:
    """All-reduce many elements, whose values are cheap to make."""
    array = np.arange(count, dtype=np.int32)
    array += comm.rank
    comm.all_reduce(array).wait()
    array -= comm.size * (comm.size - 1) // 2
    array //= comm.size
    assert (array == np.arange(count, dtype=np.int32)).all()


def cases(sizes: list[int]) -> Iterator[tuple[str, str, int, str]]:
    """(operation, algorithm, count, dtype): float32 in all sizes, the other types in one."""
    for operation in OPERATIONS:
        for name in [*ALGORITHMS[operation], *(["native"] if operation in NATIVE else [])]:
            for count in sizes:
                yield operation, name, count, "float32"
            for dtype in DTYPES:
                yield operation, name, 1001, dtype


def communicators(job: MpiJob, name: str) -> dict[str, Communicator]:
    """One in the foreground, one in the background, on as many ranks as there are."""
    selection = Selection(name, chunk=4096)
    return {
        background: Mpi(job.world, selection=selection, background=background == "background")
        for background in ("foreground", "background")
    }


def check_hierarchies(job: MpiJob) -> None:
    """Two and three levels, even and uneven groups: each operation from each root."""
    size = job.size
    own = Location(job.rank, 0, "here", 1)
    places = tuple(Location(rank, 0, "here", 1) for rank in range(size))
    topology = Topology(own, places)
    everyone: list[Hashable] = [0] * size
    pairs: list[Hashable] = [rank // 2 for rank in range(size)]
    uneven: list[Hashable] = [rank > 0 for rank in range(size)]
    strided: list[Hashable] = [rank % 2 for rank in range(size)]
    for levels in ([pairs, everyone], [uneven, everyone], [strided, everyone],
                   [pairs, strided, everyone] if size == 4 else [pairs, everyone]):  # fmt: skip
        for background in (False, True):
            maker = Maker(job, topology, Selection(), background=background)
            comm = maker.composed(levels)
            for operation in OPERATIONS:
                for count in (1, 3, 40_001):
                    for root in range(size):
                        check_case(comm, operation, count, "float32", root)
            check_swap(comm)
            comm.close()


def main() -> None:
    job: Any = find_job()
    largest = int(sys.argv[1])
    done = 0
    with job.together():
        made: dict[str, dict[str, Communicator]] = {}
        for index, (operation, name, count, dtype) in enumerate(cases([1, 2, 3, 777, 40_001])):
            if name not in made:
                made[name] = communicators(job, name)
            for where, comm in made[name].items():
                try:
                    check_case(comm, operation, count, dtype, root=index % comm.size)
                except AssertionError as error:
                    raise AssertionError(f"{operation} {name} {count} {dtype} {where}") from error
                done += 1
        for comm in made["native"].values():
            check_swap(comm)
        for name, count in (("ring", largest), ("halving_doubling", largest - 1)):
            check_large(made[name]["foreground"], count)
        pending = [made["ring"]["background"].all_reduce(np.ones(n + 1)) for n in range(20)]
        for handle in pending:
            handle.wait()
        check_hierarchies(job)
        for group in made.values():
            for comm in group.values():
                comm.close()
    print(f"rank {job.rank}: {done} cases right\n", end="")


if __name__ == "__main__":
    main()
