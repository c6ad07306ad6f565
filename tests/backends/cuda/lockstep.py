"""How kernels run on the CPU: as C++, with stand-ins for a GPU's instructions (lockstep.h)."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osucaffe.backends.cuda.runtime.compile import read

from .compiler import once

# Each library has its own variables, also of inline functions; threads jump between stacks. To link
# C++'s library takes as long as to compile a kernel.
COMMAND = ("g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fno-gnu-unique",
           "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error", "-U_FORTIFY_SOURCE",
           "-fno-threadsafe-statics", "-nostdlib")  # fmt: skip
LIBRARIES = ("-lm", "-lc", "-lgcc")
SHARED = re.compile(r"extern __shared__ .*?(\w+) (\w+)\[\];")
SHARED_POINTER = r"\1* \2 = reinterpret_cast<\1*>(::shared);"
"""How a kernel declares the memory that a block shares, and lockstep.h's in its place."""


HEADERS = Path(__file__).parent / "headers"
"""What stands for a GPU's instructions."""


def as_text(name: str) -> str:
    """A file of kernels; the memory that a block shares is lockstep.h's."""
    text = read("epilogue.cuh") + read(f"{name}.cu")
    return SHARED.sub(SHARED_POINTER, text)


def defines(macros: Mapping[str, Any]) -> str:
    """The lines that define these."""
    return "".join(f"#define {name} {value}\n" for name, value in macros.items())


def compiled(text: str, folder: Path) -> Any:
    """The function `run` of a C++ text, which may include the headers here. Its variables are its
    own, also where the same text is built again: the library is loaded from a file of its own."""
    source, library = folder / "kernel.cpp", folder / "kernel.so"

    def make() -> bytes:
        source.write_text(text)
        subprocess.run([*COMMAND, "-o", library, source, *LIBRARIES], check=True)
        return library.read_bytes()

    compiler = os.path.realpath(shutil.which(COMMAND[0]) or "")
    library.write_bytes(once(compiler, (*COMMAND, text, *_headers()), make))
    return ctypes.CDLL(str(library)).run


@functools.cache
def _headers() -> tuple[str, ...]:
    return tuple(file.read_text() for file in sorted(HEADERS.glob("*.h")))
