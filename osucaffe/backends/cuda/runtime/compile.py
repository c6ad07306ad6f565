"""The compilation of CUDA kernels by NVRTC: for the current device, kept from run to run."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ...tensor import Tensor
from ..layout import c_type
from . import device, nvrtc
from .background import Task, begin
from .cache import cache_folder, cached, keep_somewhere

FOLDER = Path(__file__).parent.parent / "kernels"
DEFAULT_SHARED = 48 << 10
"""Bytes of shared memory that a block gets without asking."""
OPTIONS = ("-std=c++17",)
ARCHITECTURE_SPECIFIC = {
    "implicit_gemm": "90a",
    "wgrad_tf32": "90a",
    "wgrad_16bit": "90a",
}
"""Files of kernels with instructions of one architecture alone, and which."""
NUMBERS: dict[str, type[np.generic]] = {
    "int": np.int32, "int64_t": np.int64, "uint64_t": np.uint64, "float": np.float32,
}  # fmt: skip
"""NumPy's names of the types in which kernels take numbers."""


@functools.cache
def read(file: str | Path) -> str:
    """The text of a file of kernels (a name: in kernels/), and of those that it includes, beside it
    or there, without its comments: what is cached outlives better words."""
    path = next(FOLDER.rglob(file)) if isinstance(file, str) else file

    def included(line: re.Match[str]) -> str:
        beside = path.with_name(line[1])
        return read(beside if beside.exists() else line[1])

    text = re.sub(r"^ *//.*\n", "", path.read_text(), flags=re.MULTILINE)
    return re.sub(r'^#include "(.+)"\n', included, text, flags=re.MULTILINE)


def texts() -> str:
    """The text of all files of kernels."""
    return "".join(read(path.name) for path in sorted(FOLDER.rglob("*.cu*")))


def architecture(capability: int, supported: tuple[int, ...]) -> str:
    """What NVRTC is to compile for: the device itself, or where this NVRTC is too old to know it,
    PTX for the newest before it, which the driver compiles.

    supported: the compute capabilities that NVRTC knows. RuntimeError where it is too new.
    """
    if capability in supported:
        return f"sm_{capability}"
    older = [each for each in supported if each < capability]
    if not older:
        raise RuntimeError(
            f"this NVRTC compiles for compute capability {min(supported) / 10:.1f} and later, not "
            f"for {capability / 10:.1f}: install CUDA 12's libraries (osucaffe[cuda12])"
        )
    return f"compute_{max(older)}"


@functools.cache
def _supported() -> tuple[int, ...]:
    """The compute capabilities that NVRTC compiles for."""
    from cupy_backends.cuda.libs import nvrtc

    return tuple(map(int, nvrtc.getSupportedArchs()))


@functools.cache
def _library() -> tuple[str, str]:
    """The version of the NVRTC that CuPy found, and its file."""
    from cupy_backends.cuda.libs import nvrtc

    version = nvrtc.getVersion()
    mapped = Path("/proc/self/maps").read_text()
    files = re.findall(rf" (/.*/libnvrtc\.so\.{version[0]}\S*)$", mapped, re.MULTILINE)
    return str(version), files[0]


def _compiled_file(text: str, options: tuple[str, ...]) -> Path:
    """The file, in the cache, of what NVRTC makes of a text. RuntimeError has its log."""
    version, library = _library()
    source = "\n".join([text, *options, version])
    name = f"{hashlib.sha256(source.encode()).hexdigest()}.cubin"
    kept = cached(name)
    return kept or keep_somewhere(cache_folder() / name, in_child(library, text, options))


def in_child(library: str, text: str, options: tuple[str, ...]) -> bytes:
    """What NVRTC makes of a text in a process of its own. RuntimeError has its log."""
    command = [sys.executable, "-I", "-S", nvrtc.__file__, library, *options]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        log = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(log or f"NVRTC ended with {done.returncode}: {' '.join(command)}")
    return done.stdout


@functools.cache
def _module(file: Path, number: int) -> Any:
    """What is in such a file, loaded on the device of this number."""
    import cupy

    with cupy.cuda.Device(number):
        module = cupy.RawModule(path=str(file))
        module.compile()
    return module


class Kernel:
    """A function of a file that is compiled in the background: its first use waits for that, and
    loads it (which CUDA forbids while a graph is captured: all is to run once before)."""

    def __init__(self, file: Task[Path], text: str, name: str, number: int) -> None:
        self._file = file
        self._text = text
        self._name = name
        self._number = number
        self._shared = 0

    @functools.cached_property
    def number_types(self) -> list[type[np.generic] | None]:
        """Of each parameter that is a number, its type; None of pointers and all else."""
        return parameter_types(self._text, self._name)

    @functools.cached_property
    def function(self) -> Any:
        """What CuPy launches. RuntimeError where it does not compile."""
        function = _module(self._file.result(), self._number).get_function(self._name)
        if self._shared > DEFAULT_SHARED:
            function.max_dynamic_shared_size_bytes = self._shared
        return function

    def reserve(self, shared: int) -> None:
        """Let blocks have that many bytes of shared memory. To be called before its first use."""
        self._shared = max(self._shared, shared)


@functools.cache
def _compiled(text: str, options: tuple[str, ...]) -> Task[Path]:
    return begin(functools.partial(_compiled_file, text, options))


def compiled(text: str, function: str, specific: str = "") -> Kernel:
    """A function of a text, as it is. specific: the architecture whose own instructions it has."""
    gpu = device.current()
    arch = f"sm_{specific}" if specific else architecture(gpu.compute_capability, _supported())
    return Kernel(_compiled(text, (*OPTIONS, f"-arch={arch}")), text, function, gpu.number)


@functools.cache
def parameter_types(text: str, function: str) -> list[type[np.generic] | None]:
    """See `Kernel.number_types`."""
    declared = re.search(rf"__global__[^;{{]*\b{function}\(([^)]*)\)", text)
    assert declared, f"no kernel {function}"
    words = [parameter.split() for parameter in declared[1].split(",")]
    return [NUMBERS.get(" ".join(kind).removeprefix("const ")) for *kind, _ in words]


def _c_value(value: Any) -> str:
    """A macro's value in C. A tensor stands for the type of its elements."""
    if isinstance(value, Tensor):
        return c_type(value)
    if isinstance(value, float):
        return f"{value!r}f"
    if isinstance(value, tuple | list):
        return f"{{{','.join(map(_c_value, value))}}}"
    return str(int(value) if isinstance(value, bool) else value)


def kernel(name: str | Path, function: str, **macros: Any) -> Kernel:
    """A kernel of kernels/<name>.cu, or of another file, compiled for these macros (once for each
    set): numbers, lists of numbers, C as text, tensors, which stand for their elements' types."""
    # As lines of the text: an option -DT=... would be seen by NVRTC's own headers too.
    lines = "".join(
        f"#define {macro} {_c_value(value)}\n" for macro, value in sorted(macros.items())
    )
    products = read("mma.cuh") if "MMA" in macros else ""
    specific = ARCHITECTURE_SPECIFIC.get(str(name), "")
    text = read(f"{name}.cu" if isinstance(name, str) else name)
    return kernel_from(lines + products + text, function, specific)


def check_heads(text: str) -> None:
    """RuntimeError where a kernel of a text does not begin by waiting for what it follows: with
    PDL_BEGIN, or with pdl_wait() if it says itself, later, when the next may be launched."""
    for name in re.findall(
        r"__global__[^;{]*\b(\w+)\([^;{]*\{(?!\s*(?:PDL_BEGIN|pdl_wait\(\));)", text
    ):
        raise RuntimeError(f"kernel {name} must begin with PDL_BEGIN or pdl_wait() (common.cuh)")


def kernel_from(text: str, function: str, specific: str = "") -> Kernel:
    """A kernel of a text whose kernels all wait first (`check_heads`). specific: see `compiled`."""
    check_heads(text)
    shared = read("common.cuh") + read("epilogue.cuh") + (read("hopper.cuh") if specific else "")
    return compiled(shared + text, function, specific)
