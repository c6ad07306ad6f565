"""Owns the compilation of the communicators' device kernels for a type of element."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BLOCKS, THREADS = 264, 512
"""Of `launch_over`: the most blocks, and the threads of each."""
_PLAIN = "return v;"
_TYPES = {
    "float32": ("float", "float", _PLAIN, _PLAIN),
    "float64": ("double", "double", _PLAIN, _PLAIN),
    "int32": ("int", "int", _PLAIN, _PLAIN),
    "float16": (
        "unsigned short",
        "float",
        'float wide; asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v)); return wide;',
        'T narrow; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow) : "f"(v)); return narrow;',
    ),
    "uint16": (
        "unsigned short",
        "float",
        "return __uint_as_float((unsigned)v << 16);",
        'T narrow; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(v)); return narrow;',
    ),
}
"""For each type of array: the element, what it is added in, and the bodies that convert. uint16
holds the bits of bfloat16."""


@functools.cache
def kernel(name: str, function: str, dtype: str, **macros: int) -> Any:
    """A kernel of <name>.cu, which has T, A, to_sum and from_sum, and these macros."""
    return _module(name, dtype, tuple(macros.items())).get_function(function)


def launch(function: Any, blocks: int, threads: int, arguments: Sequence[Any], stream: Any) -> None:
    """Launch a kernel on a stream, whatever stream is current.

    (`with stream` would not do: at its end CuPy forgets the stream that `use` has made current.)
    """
    function((blocks,), (threads,), tuple(arguments), stream=stream)


def launch_over(function: Any, count: int, arguments: Sequence[Any], stream: Any) -> None:
    """Launch a kernel whose threads share so many elements."""
    launch(function, min(BLOCKS, -(-count // THREADS)), THREADS, arguments, stream)


@functools.cache
def _module(name: str, dtype: str, macros: tuple[tuple[str, int], ...]) -> Any:
    import cupy

    element, total, widen, narrow = _TYPES[dtype]
    head = (
        "typedef unsigned int uint32_t; typedef unsigned long long uint64_t;\n"
        "typedef int int32_t; typedef long long int64_t;\n"
        f"typedef {element} T; typedef {total} A;\n"
        f"__device__ __forceinline__ A to_sum(T v) {{ {widen} }}\n"
        f"__device__ __forceinline__ T from_sum(A v) {{ {narrow} }}\n"
    )
    head += "".join(f"#define {macro} {value}\n" for macro, value in macros)
    text = Path(__file__).with_name(f"{name}.cu").read_text()
    return cupy.RawModule(code=head + text, options=("-std=c++17",))
