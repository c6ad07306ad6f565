"""The communicators' device kernels, compiled for a type of element; and sums by them, for an
MPI library that takes pointers to device memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...backends.cuda.runtime import device
from ...backends.cuda.runtime.compile import compiled

THREADS = 512
"""Threads of a block of `launch_over`."""
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
    """A kernel of <name>.cu, which has T, A, to_sum and from_sum, and these macros: what CuPy
    launches."""
    return compiled(_text(name, dtype, tuple(macros.items())), function).function


def launch(function: Any, blocks: int, threads: int, arguments: Sequence[Any], stream: Any) -> None:
    """Launch a kernel on a stream, whatever stream is current.

    (`with stream` would not do: at its end CuPy forgets the stream that `use` has made current.)
    """
    function((blocks,), (threads,), tuple(arguments), stream=stream)


def launch_over(
    function: Any, count: int, arguments: Sequence[Any], stream: Any, per_sm: int = 2
) -> None:
    """Launch a kernel whose threads share that many items.

    each: the most blocks for each multiprocessor.
    """
    most = per_sm * device.current().sm_count
    launch(function, min(most, -(-count // THREADS)), THREADS, arguments, stream)


def _text(name: str, dtype: str, macros: tuple[tuple[str, int], ...]) -> str:
    element, total, widen, narrow = _TYPES[dtype]
    head = (
        "typedef unsigned int uint32_t; typedef unsigned long long uint64_t;\n"
        "typedef int int32_t; typedef long long int64_t;\n"
        f"typedef {element} T; typedef {total} A;\n"
        f"__device__ __forceinline__ A to_sum(T v) {{ {widen} }}\n"
        f"__device__ __forceinline__ T from_sum(A v) {{ {narrow} }}\n"
    )
    head += "".join(f"#define {macro} {value}\n" for macro, value in macros)
    return head + Path(__file__).with_name(f"{name}.cu").read_text()


class DeviceMath:
    """The counterpart of `HostMath` for arrays on the GPU that is current when it is made.

    Kernels run on its stream, or on a given one: results are ready when `finish` returns, or for
    later work on that stream.
    """

    native = False
    """The libraries' native collectives are no use: Open MPI's are not CUDA-aware in their
    non-blocking forms (its FAQ, "Which MPI APIs do NOT work with CUDA-aware?")."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._scratch = cupy.empty(0, np.uint8)

    def empty(self, count: int, dtype: Any) -> Any:
        """Memory of that many elements."""
        self._device.use()  # this may be a background thread; MPI needs the current device, too
        return self._cupy.empty(count, dtype)

    def scratch(self, nbytes: int) -> Any:
        """At least nbytes of memory (uint8); the same memory each time."""
        self._device.use()
        if self._scratch.size < nbytes:
            self._scratch = self.empty(nbytes, np.uint8)
        return self._scratch

    def add(self, target: Any, source: Any) -> None:
        """target += source; 16-bit floats are added in float32 and rounded."""
        self._launch(kernel("device", "add", target.dtype.name), target, source)

    def narrow(self, values: Any, out: Any, stream: Any = None) -> None:
        """out = values, from float32 to float16 or bfloat16, rounded to the nearest."""
        self._device.use()
        self._launch(kernel("half_precision", "narrow", out.dtype.name), values, out, stream)

    def widen(self, bits: Any, out: Any, stream: Any = None) -> None:
        """out (float32) = the numbers of a float16 array, or of bfloat16 bits in uint16."""
        self._launch(kernel("half_precision", "widen", bits.dtype.name), out, bits, stream)

    def _launch(self, function: Any, first: Any, second: Any, stream: Any = None) -> None:
        arguments = first, second, np.int64(first.size)
        launch_over(function, first.size, arguments, stream or self._stream)

    def finish(self) -> None:
        """Return when all that was begun is there."""
        self._stream.synchronize()
