"""The kernels of communicators compile for every type: no GPU is needed for that."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from osucaffe.comm import kernels
from tests.backends.cuda.simulated import compile_ptx, nvrtc


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize("dtype", kernels._TYPES)
@pytest.mark.parametrize(("name", "functions"), [("copying", ["meet", "add"])])
def test_compiles(
    name: str, functions: list[str], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(RawModule=lambda code, options: compile_ptx(code, options))
    monkeypatch.setitem(sys.modules, "cupy", module)
    text = kernels._module.__wrapped__(name, dtype, ())
    for function in functions:
        assert f".entry {function}" in text
    assert ".local" not in text, "an array of the kernel does not fit into registers"
