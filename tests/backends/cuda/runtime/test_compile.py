"""Kernels are compiled each in a process of its own, kept, and compiled once."""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path
from typing import Any

import pytest

from osucaffe.backends.cuda.runtime import compile

from ..compiler import nvrtc

TEXT = 'extern "C" __global__ void one(float* x) { x[threadIdx.x] = 1; }'


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = nvrtc()
    if found is None:
        pytest.skip("NVRTC is not installed")
    monkeypatch.setenv("OSUCAFFE_CACHE", str(tmp_path))
    monkeypatch.setattr(compile, "in_child", inspect.unwrap(compile.in_child))
    monkeypatch.setattr(compile, "_library", lambda: ("a version", found._name))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("arch", "magic"), [("sm_90", b"\x7fELF"), ("compute_80", b"//")])
def test_what_was_compiled_is_kept(
    arch: str, magic: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*compile.OPTIONS, f"-arch={arch}")
    file = compile._compiled_file(TEXT, options)
    made = file.read_bytes().strip()
    assert made.startswith(magic)
    assert b"one" in made
    assert (made[-1] != 0) or arch == "sm_90"
    monkeypatch.setattr(subprocess, "run", None)
    assert compile._compiled_file(TEXT, options) == file


@pytest.mark.usefixtures("library")
def test_the_compilers_message_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match='identifier "y" is undefined') as caught:
        compile._compiled_file(TEXT.replace("= 1", "= y"), compile.OPTIONS)
    assert "Traceback" not in str(caught.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("library")
def test_a_compiler_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, -11, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(RuntimeError, match=r"NVRTC ended with -11: .*nvrtc\.py"):
        compile._compiled_file(TEXT, compile.OPTIONS)
