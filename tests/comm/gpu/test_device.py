"""MPI that takes device arrays: every algorithm on ranks without a GPU, and the kernel's launch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.comm.gpu import kernels
from osucaffe.comm.gpu.kernels import THREADS, DeviceMath
from osucaffe.comm.host import DTYPES
from osucaffe.comm.job.job import cuda_aware
from tests.backends.cuda.devices import H200
from tests.backends.cuda.simulated import compile_for_communicators

from ..ranks import mpiexec, needs_mpi


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_case(ranks: int) -> None:
    done = mpiexec(ranks, "-m", "tests.comm.device_ranks")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("cases right") == ranks


@pytest.mark.parametrize("dtype", DTYPES)
def test_launches_fit_the_kernel(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []

    def launch(function: Any, blocks: int, threads: int, arguments: Any, stream: Any) -> None:
        function((blocks,), (threads,), arguments)
        launched.append((blocks, threads))

    compile_for_communicators(monkeypatch)
    monkeypatch.setattr(kernels, "launch", launch)
    math: Any = object.__new__(DeviceMath)
    math._stream = None
    for count in (1, THREADS + 1, 5_000_000):
        math.add(np.zeros(count, dtype), np.zeros(count, dtype))
    assert launched == [(1, THREADS), (2, THREADS), (2 * H200.sm_count, THREADS)]


@pytest.mark.parametrize("variable", ["MPICH_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA"])
def test_the_library_says_whether_it_is_cuda_aware(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it has a function for that, and else the variable that turns it on."""
    answers = []
    library = SimpleNamespace()
    monkeypatch.setattr("ctypes.CDLL", lambda path: library)
    mpi = SimpleNamespace(__file__="MPI.so")
    monkeypatch.delenv("MPICH_GPU_SUPPORT_ENABLED", raising=False)
    monkeypatch.delenv("MV2_USE_CUDA", raising=False)
    for value in (None, "0", "1"):
        if value is not None:
            monkeypatch.setenv(variable, value)
        answers.append(cuda_aware(mpi))
    assert answers == [False, False, True]
    library.MPIX_Query_cuda_support = lambda: 0
    assert not cuda_aware(mpi)
    library.MPIX_Query_cuda_support = lambda: 1
    monkeypatch.delenv(variable)
    assert cuda_aware(mpi)
