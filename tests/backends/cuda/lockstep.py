"""Owns how kernels run on the CPU: as C++, with stand-ins for a GPU's instructions (lockstep.h)."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osucaffe.backends.cuda.runtime.compile import read

SHARED = re.compile(r"extern __shared__ .*?(\w+) shared\[\];")
"""How a kernel declares the memory that a block shares."""


def as_text(name: str) -> str:
    """A file of kernels; the memory that a block shares is lockstep.h's."""
    return SHARED.sub(r"\1* shared = reinterpret_cast<\1*>(::shared);", read(f"{name}.cu"))


def defines(macros: Mapping[str, Any]) -> str:
    """The lines that define these."""
    return "".join(f"#define {name} {value}\n" for name, value in macros.items())


def compiled(text: str, folder: Path) -> Any:
    """The function `run` of a C++ text."""
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(text)
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", library, source], check=True
    )
    return ctypes.CDLL(str(library)).run
