"""Owns kernels of plain loops that run on the CPU, on the memory that a stand-in GPU has."""

from __future__ import annotations

import ctypes
import functools
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda.runtime import compile

from .lockstep import compiled

FOLDER = Path(__file__).parent
HEADERS = ("lockstep.h", "warps_lockstep.h")


class Executed:
    """A kernel of a text, built as C++; calling it runs it, all threads in lockstep."""

    def __init__(self, text: str, name: str, folder: Path) -> None:
        found = re.search(rf"__global__ void {name}\((.*?)\)", text, re.DOTALL)
        assert found, f"no kernel {name}"
        types = [each.strip().rsplit(" ", 1)[0] for each in found[1].split(",")]
        given = ", ".join(f"*({kind}*)values[{i}]" for i, kind in enumerate(types))
        self._run = compiled(
            "".join((FOLDER / header).read_text() for header in HEADERS)
            + text.removeprefix(compile.read("common.cuh"))
            + 'extern "C" void run(int blocks, int threads, void** values) {'
            + " blockDim = {threads, 1, 1};"
            + f" run_blocks({{blocks, 1, 1}}, blockDim, [&] {{ {name}({given}); }}); }}",
            folder,
        )
        self.max_dynamic_shared_size_bytes = 0

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], values: Sequence[Any], shared_mem: int = 0
    ) -> None:
        held = [np.array(np.uint64(each) if isinstance(each, int) else each) for each in values]
        addresses = (ctypes.c_void_p * len(held))(*(each.ctypes.data for each in held))
        self._run(grid[0], block[0], addresses)


class _Module:
    """The kernels of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._folder = Path(tempfile.mkdtemp())

    @functools.cache  # noqa: B019 (there is one module of a text)
    def get_function(self, name: str) -> Executed:
        folder = self._folder / name
        folder.mkdir()
        return Executed(self._text, name, folder)


_module = functools.cache(_Module)


def execute(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `simulate`: let kernels run. They are to be of plain loops and warps' own sums."""
    monkeypatch.setattr(compile, "_compiled_file", lambda text, options: text)
    monkeypatch.setattr(compile, "_module", lambda text, number: _module(text))
    compile._compiled.cache_clear()
