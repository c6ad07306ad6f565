"""Which kernel takes an array, and that its packets fit into a slot."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.comm import kernels
from osucaffe.comm.algorithms import OPERATIONS
from osucaffe.comm.host import DTYPES
from osucaffe.comm.ipc import BLOCKS, SLOT, THREADS, Ipc, elements, most, plan
from tests.backends.cuda.simulated import Kernel, compile_ptx, nvrtc


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


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize("dtype", DTYPES)
def test_launches_fit_the_kernels(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def module(code: str, options: tuple[str, ...]) -> Any:
        return SimpleNamespace(get_function=functools.partial(Kernel, compile_ptx(code, options)))

    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=module))
    monkeypatch.setattr(kernels, "_module", kernels._module.__wrapped__)
    monkeypatch.setattr("osucaffe.comm.ipc.kernel", kernels.kernel.__wrapped__)
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
