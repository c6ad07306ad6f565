"""Kernels that run on the CPU, as C++, on the memory that a stand-in GPU has: those of plain
loops, and of what threads of a warp and a block tell one another."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osucaffe.backends.cuda.runtime import compile

from .lockstep import HEADERS, SHARED, SHARED_POINTER, compiled

INCLUDED = ("lockstep.h", "warps_lockstep.h", "mma_lockstep.h")
_KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\([^)]*\)\s+)?(\w+)\((.*?)\)", re.DOTALL)
_TYPES = re.compile(r"^typedef .* u?int\d+_t;\n", re.MULTILINE)
"""Of common.cuh: C++ has these already."""


class Executed:
    """A kernel of a text that was built as C++; calling it runs it, all threads in lockstep."""

    def __init__(self, run: Any, number: int) -> None:
        self._run, self._number = run, number
        self.max_dynamic_shared_size_bytes = 0

    def __call__(
        self, grid: Sequence[int], block: Sequence[int], values: Sequence[Any], shared_mem: int = 0
    ) -> None:
        held = [np.array(np.uint64(each) if isinstance(each, int) else each) for each in values]
        addresses = (ctypes.c_void_p * len(held))(*(each.ctypes.data for each in held))
        sizes = (ctypes.c_int * 5)(*(*grid, 1, 1)[:3], *(*block, 1)[:2])
        self._run(self._number, sizes, addresses)


def _preprocessed(text: str) -> str:
    """A text without what is in it only if a macro is defined that is not."""
    command = ("cpp", "-P", "-undef", "-")
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _definitions(text: str) -> Iterator[str]:
    """Its functions and types, and what is between them, one behind the other."""
    part = ""
    for line in text.splitlines(keepends=True):
        part += line
        if line[0] == "}" or (line[-2] in ";}" and part == line):
            yield part
            part = ""
    yield part


class _Module:
    """The kernels of a text, built at once."""

    def __init__(self, text: str) -> None:
        paired = "bf16.bf16" in text  # among what is multiplied
        text = _TYPES.sub("", SHARED.sub(SHARED_POINTER, _preprocessed(text)))
        # No instruction of a GPU loads more than 16 bytes.
        text = text.replace("alignas(sizeof(T) * N)", "alignas(min(16, (int)sizeof(T) * N))")
        # What has instructions of its own is in warps_lockstep.h.
        text = "".join(each for each in _definitions(text) if "asm" not in each)
        found = _KERNEL.findall(text)
        self._names = [name for name, _ in found]
        cases = []
        for number, (name, parameters) in enumerate(found):
            types = [each.strip().rsplit(" ", 1)[0] for each in parameters.split(",")]
            given = ", ".join(f"*({kind}*)values[{i}]" for i, kind in enumerate(types))
            cases.append(f"if (number == {number}) {name}({given});")
        with tempfile.TemporaryDirectory() as folder:
            self._run = compiled(
                "#define COMMON\n"
                + "#define BFLOAT16\n" * paired
                + "".join((HEADERS / header).read_text() for header in INCLUDED)
                + text
                + 'extern "C" void run(int number, const int* sizes, void** values) {'
                + " run_blocks({sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], 1}, [&] {"
                + "\n".join(cases)
                + "}); }",
                Path(folder),
            )

    def get_function(self, name: str) -> Executed:
        return Executed(self._run, self._names.index(name))


_module = functools.cache(_Module)


def execute(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `simulate`: let kernels run."""
    monkeypatch.setattr(compile, "_compiled_file", lambda text, options: text)
    monkeypatch.setattr(compile, "_module", lambda text, number: _module(text))
    monkeypatch.setattr(compile, "_compiled", functools.cache(compile._compiled.__wrapped__))
