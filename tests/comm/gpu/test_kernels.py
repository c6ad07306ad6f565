"""The kernels of communicators compile for every type, on every GPU: none is needed for that. And
MPI that takes device arrays: every algorithm on ranks without a GPU, and the kernel's launch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from osucaffe.comm.gpu import ipc, kernels
from osucaffe.comm.gpu.half_precision import TYPES
from osucaffe.comm.gpu.kernels import THREADS, DeviceMath
from osucaffe.comm.host import DTYPES
from osucaffe.comm.job.job import cuda_aware
from tests.backends.cuda.compiler import nvrtc
from tests.backends.cuda.devices import DEVICES, H200
from tests.backends.cuda.simulated import compile_for_communicators, compile_ptx

from ..ranks import all_say, needs_mpi

IPC = {"SLOT": ipc.SLOT, "BLOCKS": ipc.BLOCKS, "THREADS": ipc.THREADS}
CASES = [
    *[("copy_engine", ["add"], {"PEERS": n}) for n in (1, 4, 15)],
    *[("ipc", ["one_shot", "two_shot", "spread"], IPC | {"RANKS": n}) for n in (2, 5, 16)],
]
ALL = [
    *[(*case, dtype, "H200") for case in CASES for dtype in kernels._TYPES],
    *[(*case, "uint16", gpu) for case in CASES[1::3] for gpu in DEVICES],
    *[
        ("half_precision", ["narrow", "widen"], {}, kind.__name__, "H200")
        for kind in TYPES.values()
    ],
]


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize(("name", "functions", "macros", "dtype", "gpu"), ALL)
def test_compiles(
    name: str, functions: list[str], macros: dict[str, int], dtype: str, gpu: str
) -> None:
    options = ("-std=c++17", f"-arch=compute_{DEVICES[gpu].compute_capability}")
    text = compile_ptx(kernels._text(name, dtype, tuple(macros.items())), options)
    for function in functions:
        assert f".entry {function}" in text
    assert ".local" not in text, "an array of the kernel does not fit into registers"


@needs_mpi
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_case(ranks: int) -> None:
    all_say("cases right", ranks, "tests.comm.device_ranks")


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
