"""bench_comm on GPUs, with stand-ins for them: what is checked, measured and written."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy")

from benchmarks.communication import bench_comm, bench_comm_gpu
from osucaffe.comm.algorithms import OPERATIONS, part
from osucaffe.comm.communicator import Serial
from osucaffe.comm.gpu.on_stream import OnStream
from osucaffe.comm.job.job import Job
from tests.comm.collectives import check_result


class Done(OnStream):
    """One of a single rank on no GPU: all is done."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1

    def enqueue(self, operation: str, array: Any, root: int, stream: Any) -> None:
        raise AssertionError("a single rank has nothing to do")


def after(operation: str, rank: int, arrays: list[np.ndarray]) -> np.ndarray:
    """What a rank holds after an operation, where it is defined; else what it held."""
    found, total = arrays[rank].copy(), np.sum(arrays, axis=0)
    parts = [part(found.size, len(arrays), each) for each in range(len(arrays))]
    if operation == "broadcast":
        found = arrays[0].copy()
    elif operation == "all_reduce" or (operation == "reduce" and rank == 0):
        found = total
    elif operation == "reduce_scatter":
        found[slice(*parts[rank])] = total[slice(*parts[rank])]
    elif operation == "all_gather":
        for span, array in zip(parts, arrays, strict=True):
            found[slice(*span)] = array[slice(*span)]
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_results_are_checked(operation: str, count: int) -> None:
    arrays = [np.full(count, rank + 1.0) for rank in range(3)]
    changed = False
    for rank in range(3):
        comm: Any = Done()
        comm.rank, comm.size = rank, 3
        found = after(operation, rank, arrays)
        check_result(comm, operation, found, arrays, 0)
        assert bench_comm_gpu.is_right(comm, operation, found)
        for index in range(count):
            wrong = found.copy()
            wrong[index] += 1
            try:
                check_result(comm, operation, wrong, arrays, 0)
            except AssertionError:
                changed = True
                assert not bench_comm_gpu.is_right(comm, operation, wrong)
    assert changed


def test_rows_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(contextlib.nullcontext[None]):
        def __init__(self, **settings: Any) -> None:
            super().__init__()

        def synchronize(self) -> None:
            pass

    took = {"nccl": 8e-6, "ipc": 2e-6, "copy": 4e-6, "auto": 2e-6}
    comms: dict[str, Any] = {name: Done() for name in took} | {"mpi": Serial()}
    names = {id(comm): name for name, comm in comms.items()}
    monkeypatch.setattr(
        bench_comm_gpu, "cupy", SimpleNamespace(cuda=SimpleNamespace(Stream=Stream))
    )
    monkeypatch.setattr(bench_comm_gpu, "replayed", lambda comm, *_: lambda: took[names[id(comm)]])
    rows = []
    for nbytes in (4, 1 << 10):
        for operation in OPERATIONS:
            array = np.zeros(nbytes // 4, np.float32)
            found = bench_comm_gpu.measure(Job(), comms, operation, array)
            assert found["graph"] == {
                name: pytest.approx(each * 1e6) for name, each in took.items()
            }
            assert list(found["called"]) == ([] if nbytes == 4 else list(bench_comm_gpu.KINDS))
            rows.append({"operation": operation, "bytes": nbytes} | found)
    record = {"date": "today", "gpu": "A GPU", "nccl": "2.28.9", "microseconds": {"2 GPUs": rows}}
    text = bench_comm.render_gpus(record)
    assert text.count("### ") == len(OPERATIONS)
    assert "| 4 | 8.0 | 2.0 | 4.0 | 2.0 |  |  |  |  |  | 0.25 | 0.50 |" in text
    heads = "| bytes | nccl, graph | ipc, graph | copy, graph | auto, graph | nccl, called |"
    assert heads in text
