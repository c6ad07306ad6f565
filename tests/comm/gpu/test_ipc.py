"""Which kernel takes an array, that its packets fit into a slot, and what the kernels do."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.comm.algorithms import OPERATIONS
from osucaffe.comm.gpu.ipc import BLOCKS, SLOT, THREADS, Ipc, elements, most, plan
from osucaffe.comm.host import DTYPES
from tests.backends.cuda.simulated import compile_for_communicators

from ..collectives import check_result, values
from ..emulated import COMPILER, make_ranks


@pytest.mark.parametrize("ranks", range(2, 17))
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_plans_fit(ranks: int, itemsize: int) -> None:
    """In one shot a slot holds every rank's packets; in two, every rank's of a part, twice."""
    largest = most(itemsize, ranks)
    sizes = {2**power + odd for power in range(24) for odd in (0, 1, 7)} | {largest}
    taken = set()
    for count in [size for size in sizes if size <= largest]:
        packets = -(-count // elements(itemsize))
        name, shared = plan(count, itemsize, ranks)
        taken.add(name)
        if name == "one_shot":
            assert shared == packets
            assert ranks * packets <= SLOT
        else:
            assert packets >= ranks, "a part would be empty"
            assert shared * ranks >= packets
            assert 2 * ranks * shared <= SLOT
    assert taken == ({"one_shot"} if ranks == 2 else {"one_shot", "two_shot"})
    assert largest >= SLOT // 4 * elements(itemsize)


def test_more_ranks_take_two_shots_earlier() -> None:
    sizes = range(1000, 10**6, 1000)
    first = [next(n for n in sizes if plan(n, 4, k)[0] == "two_shot") for k in (3, 4, 8, 16)]
    assert first == sorted(first, reverse=True)
    assert first[1] * 4 < 256 << 10


@pytest.mark.parametrize("dtype", DTYPES)
def test_launches_fit_the_kernels(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_for_communicators(monkeypatch)
    ipc: Any = object.__new__(Ipc)
    ipc.rank, ipc.size, ipc._blocks, ipc._slots, ipc._calls = 1, 3, BLOCKS, object(), object()
    for operation in OPERATIONS:
        for count in (1, 1001, 100_000, 5_000_000):
            launches = ipc._prepare(operation, 1 << 40, count, np.dtype(dtype), 2)
            assert launches
            for function, blocks, threads, arguments in launches:
                function((blocks,), (threads,), arguments)
                assert blocks <= BLOCKS
                assert threads <= THREADS


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(
    ("size", "dtype"), [(2, "float64"), (3, "float32"), (4, "float32"), (7, "int32")]
)
def test_any_operations_in_any_order(
    size: int, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One behind the other, of all sizes, while ranks fall behind: the slots are used in turn."""
    made = make_ranks(size, tmp_path, monkeypatch)
    random = np.random.default_rng(size)
    calls = [
        (
            str(random.choice(OPERATIONS)),
            int(2 ** random.uniform(0, 11)),
            int(random.integers(size)),
        )
        for _ in range(60)
    ]

    def work(comm: Any) -> list[np.ndarray]:
        own = np.random.default_rng((1, comm.rank))
        found = []
        for operation, count, root in calls:
            array = values(comm.rank, count, dtype)
            flat = SimpleNamespace(
                data=SimpleNamespace(ptr=array.ctypes.data), size=count, dtype=array.dtype
            )
            comm.enqueue(operation, flat, root, None)
            found.append(array)
            if own.random() < 0.2:
                time.sleep(own.uniform(0, 2e-3))
        return found

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(work, [comm for comm, _ in made]))
    for number, (operation, count, root) in enumerate(calls):
        arrays = [values(rank, count, dtype).astype(float) for rank in range(size)]
        for comm, _ in made:
            got = found[comm.rank][number].astype(float)
            check_result(comm, operation, got, arrays, root)
    assert all((comm._calls == made[0][0]._calls[0]).all() for comm, _ in made)
