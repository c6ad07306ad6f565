"""The kernels of communicators compile for every type, on every GPU: none is needed for that."""

from __future__ import annotations

import pytest

from osucaffe.comm.gpu import ipc, kernels
from osucaffe.comm.gpu.half_precision import TYPES
from tests.backends.cuda.compiler import nvrtc
from tests.backends.cuda.devices import DEVICES
from tests.backends.cuda.simulated import compile_ptx

IPC = {"SLOT": ipc.SLOT, "BLOCKS": ipc.BLOCKS, "THREADS": ipc.THREADS}
CASES = [
    *[("copy_engine", ["add"], {"PEERS": n}) for n in (1, 4, 15)],
    *[("ipc", ["one_shot", "two_shot", "spread"], IPC | {"RANKS": n}) for n in (2, 5, 16)],
]


def check(
    name: str, functions: list[str], dtype: str, macros: dict[str, int], capability: int = 90
) -> None:
    options = ("-std=c++17", f"-arch=compute_{capability}")
    text = compile_ptx(kernels._text(name, dtype, tuple(macros.items())), options)
    for function in functions:
        assert f".entry {function}" in text
    assert ".local" not in text, "an array of the kernel does not fit into registers"


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize("dtype", kernels._TYPES)
@pytest.mark.parametrize(("name", "functions", "macros"), CASES)
def test_compiles(name: str, functions: list[str], macros: dict[str, int], dtype: str) -> None:
    check(name, functions, dtype, macros)


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize("gpu", DEVICES)
@pytest.mark.parametrize(("name", "functions", "macros"), CASES[1::3])
def test_compiles_for_every_gpu(
    name: str, functions: list[str], macros: dict[str, int], gpu: str
) -> None:
    check(name, functions, "uint16", macros, DEVICES[gpu].compute_capability)


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize("kind", TYPES.values())
def test_conversions_compile(kind: type) -> None:
    check("half_precision", ["narrow", "widen"], kind.__name__, {})
