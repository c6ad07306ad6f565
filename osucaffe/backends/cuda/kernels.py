"""Owns the compilation and launching of this package's CUDA kernels (kernels/*.cu, by NVRTC)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..tensor import Step, Tensor

FOLDER = Path(__file__).parent / "kernels"
THREADS = 256


OPTIONS = ("-std=c++17",)


@functools.cache
def read(name: str) -> str:
    """The text of a file of kernels."""
    return (FOLDER / name).read_text()


@functools.cache
def _module(text: str, options: tuple[str, ...]) -> Any:
    import cupy

    return cupy.RawModule(code=text, options=options)


def kernel(name: str, function: str, **macros: Any) -> Any:
    """A kernel of kernels/<name>.cu, compiled for these macros (once for each set)."""
    # As lines of the text: an option -DT=... would be seen by NVRTC's own headers too.
    lines = "".join(f"#define {macro} {value}\n" for macro, value in sorted(macros.items()))
    return kernel_from(lines + read(f"{name}.cu"), function)


def kernel_from(text: str, function: str) -> Any:
    """A kernel whose text was generated."""
    return _module(read("common.cuh") + text, OPTIONS).get_function(function)


def launch(
    function: Any,
    grid: int | Sequence[int],
    arguments: Sequence[Any],
    *,
    block: int | Sequence[int] = THREADS,
    shared: int = 0,
) -> Step:
    """A step that launches a kernel. A Tensor among the arguments passes its address, which is
    read when the step runs; None passes a null pointer; numbers must be of the right NumPy type."""
    blocks = (grid,) if isinstance(grid, int) else tuple(grid)
    threads = (block,) if isinstance(block, int) else tuple(block)
    given = [0 if argument is None else argument for argument in arguments]
    if shared > 48 * 1024:
        function.max_dynamic_shared_size_bytes = shared

    def step() -> None:
        values = tuple(a.address if isinstance(a, Tensor) else a for a in given)
        function(blocks, threads, values, shared_mem=shared)

    return step


def blocks_for(count: int, a_thread: int = 1) -> int:
    """Enough blocks of THREADS for `count` elements, but no more than keep every GPU busy."""
    return max(1, min(-(-count // (THREADS * a_thread)), 132 * 32))
