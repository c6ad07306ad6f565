"""Owns how kernels run on the CPU: as C++, with stand-ins for a GPU's instructions (lockstep.h)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osucaffe.backends.cuda.kernels import read

SHARED = "extern __shared__ uint4 shared[];"


def without_instructions(name: str) -> tuple[str, str]:
    """What a file of kernels has before its instructions, and its kernels."""
    before, _, rest = read(f"{name}.cu").partition("// -- instructions")
    kernels = rest.partition("// -- kernels")[2].partition("\n")[2]
    return before, kernels.replace(SHARED, "uint4* shared = reinterpret_cast<uint4*>(::shared);")


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
