"""The kernels of communicators compile for every type: no GPU is needed for that."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from osucaffe.comm import ipc, kernels
from osucaffe.comm.narrowed import TYPES
from tests.backends.cuda.simulated import compile_ptx, nvrtc

IPC = {"SLOT": ipc.SLOT, "BLOCKS": ipc.BLOCKS, "THREADS": ipc.THREADS}
CASES = [
    *[("copying", ["add"], {"PEERS": n}) for n in (1, 4, 15)],
    *[("ipc", ["one_shot", "two_shot", "spread"], IPC | {"RANKS": n}) for n in (2, 5, 16)],
]


def check(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    functions: list[str],
    dtype: str,
    macros: dict[str, int],
) -> None:
    module = SimpleNamespace(RawModule=lambda code, options: compile_ptx(code, options))
    monkeypatch.setitem(sys.modules, "cupy", module)
    text = kernels._module.__wrapped__(name, dtype, tuple(macros.items()))
    for function in functions:
        assert f".entry {function}" in text
    assert ".local" not in text, "an array of the kernel does not fit into registers"


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize("dtype", kernels._TYPES)
@pytest.mark.parametrize(("name", "functions", "macros"), CASES)
def test_compiles(
    name: str,
    functions: list[str],
    macros: dict[str, int],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(monkeypatch, name, functions, dtype, macros)


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize("kind", TYPES.values())
def test_conversions_compile(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, "narrowed", ["narrow", "widen"], kind.__name__, {})
