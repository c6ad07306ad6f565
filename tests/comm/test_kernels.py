"""The IPC kernels compile for every type: no GPU is needed for that."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from osucaffe.comm import ipc
from tests.backends.cuda.simulated import compile_ptx, nvrtc


@pytest.mark.skipif(nvrtc() is None, reason="there is no NVRTC")
@pytest.mark.parametrize("dtype", ipc._TYPES)
def test_compiles(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(RawModule=lambda code, options: compile_ptx(code, options))
    monkeypatch.setitem(sys.modules, "cupy", module)
    text = ipc._module.__wrapped__(dtype)
    for name in ("one_shot", "two_shot", "pull"):
        assert f".entry {name}" in text
    assert ".local" not in text, "an array of the kernel does not fit into registers"
