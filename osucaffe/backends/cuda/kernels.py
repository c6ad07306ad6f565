"""Owns the compilation and launching of this package's CUDA kernels (kernels/*.cu, by NVRTC)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..tensor import Step, Tensor

FOLDER = Path(__file__).parent / "kernels"
THREADS = 256


@functools.cache
def source(name: str) -> str:
    """The text of one file of kernels, what all share in front."""
    return common() + (FOLDER / f"{name}.cu").read_text()


@functools.cache
def common() -> str:
    """The text that stands in front of every kernel."""
    return (FOLDER / "common.cuh").read_text()


def options(macros: dict[str, Any]) -> tuple[str, ...]:
    """NVRTC's options for these macros."""
    defined = tuple(f"-D{name}={value}" for name, value in sorted(macros.items()))
    return ("-std=c++17", *defined)


@functools.cache
def _module(text: str, flags: tuple[str, ...]) -> Any:
    import cupy

    return cupy.RawModule(code=text, options=flags)


def kernel(name: str, function: str, **macros: Any) -> Any:
    """A kernel of kernels/<name>.cu, compiled for these macros (once for each set)."""
    return _module(source(name), options(macros)).get_function(function)


def kernel_from(text: str, function: str) -> Any:
    """A kernel whose text was generated."""
    return _module(common() + text, options({})).get_function(function)


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
