"""Owns the compilation and launching of this package's CUDA kernels (kernels/*.cu, by NVRTC)."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..tensor import Step, Tensor
from .cache import cache_folder, keep_somewhere
from .dependent import is_possible, launch_dependent, with_waiting
from .tensor_map import Described

FOLDER = Path(__file__).parent / "kernels"
THREADS = 256
SHARED = 48 << 10
"""Bytes of shared memory that a block gets without asking."""
MOST_COMPILERS = 16
"""Files that are compiled at a time, at most: each takes some 100 MB."""
OPTIONS = ("-std=c++17",)
HOPPER = "90"
"""The compute capability of GPUs with instructions of their own."""
HOPPER_FILES = ("filter_gradient", "large", "warpgroup")
"""Files whose kernels have these."""


@functools.cache
def read(name: str) -> str:
    """The text of a file of kernels."""
    return (FOLDER / name).read_text()


def _options(*, hopper: bool) -> tuple[str, ...]:
    """What NVRTC is told, to compile for the current device."""
    if hopper:
        return (*OPTIONS, f"-arch=sm_{HOPPER}a")
    capability, newest = int(compute_capability()), _newest()
    # A driver compiles for a device that this NVRTC is too old to know.
    return (
        *OPTIONS,
        f"-arch={'sm' if capability <= newest else 'compute'}_{min(capability, newest)}",
    )


@functools.cache
def _newest() -> int:
    """The newest compute capability that NVRTC compiles for."""
    from cupy_backends.cuda.libs import nvrtc

    return int(max(nvrtc.getSupportedArchs()))


def _compiled_file(text: str, options: tuple[str, ...]) -> Path:
    """The file, in the cache, of what NVRTC makes of a text."""
    from cupy_backends.cuda.libs import nvrtc

    source = "\n".join([text, *options, str(nvrtc.getVersion())])
    path = cache_folder() / f"{hashlib.sha256(source.encode()).hexdigest()}.cubin"
    if path.exists():
        return path
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
        is_final = any("=sm_" in option for option in options)
        made = nvrtc.getCUBIN(program) if is_final else nvrtc.getPTX(program)
    except nvrtc.NVRTCError as error:
        raise RuntimeError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)
    return keep_somewhere(path, made)


@functools.cache
def _module(file: Path, device: int) -> Any:
    import cupy

    with cupy.cuda.Device(device):
        module = cupy.RawModule(path=str(file))
        module.compile()
    return module


def compute_capability() -> str:
    """That of the current device, as digits."""
    import cupy

    return str(cupy.cuda.Device(_device()).compute_capability)


def _device() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDevice())


class Kernel:
    """A function of a file that is compiled in the background: its first use waits for that, and
    loads it (which CUDA forbids while a graph is captured: all is to run once before)."""

    def __init__(self, file: Future[Path], name: str, device: int) -> None:
        self._file = file
        self._name = name
        self._device = device
        self._shared = 0

    @functools.cached_property
    def function(self) -> Any:
        """What CuPy launches."""
        function = _module(self._file.result(), self._device).get_function(self._name)
        if self._shared > SHARED:
            function.max_dynamic_shared_size_bytes = self._shared
        return function

    def reserve(self, shared: int) -> None:
        """Let blocks have so many bytes of shared memory. To be called before its first use."""
        self._shared = max(self._shared, shared)


@functools.cache
def _compilers() -> ThreadPoolExecutor:
    threads = min(len(os.sched_getaffinity(0)), MOST_COMPILERS)
    return ThreadPoolExecutor(threads, thread_name_prefix="nvrtc")


@functools.cache
def _compiled(text: str, options: tuple[str, ...]) -> Future[Path]:
    return _compilers().submit(_compiled_file, text, options)


_captures: list[Any] = []
"""The streams that are being captured."""


def captured(stream: Any, run: Callable[[], None]) -> Any:
    """The CUDA graph of what this runs on the stream, and on others that wait for it. It must have
    run before."""
    stream.begin_capture()
    _captures.append(stream)
    try:
        run()
    finally:
        _captures.pop()
        graph = stream.end_capture()
    return graph


def kernel(name: str, function: str, **macros: Any) -> Kernel:
    """A kernel of kernels/<name>.cu, compiled for these macros (once for each set)."""
    # As lines of the text: an option -DT=... would be seen by NVRTC's own headers too.
    lines = "".join(f"#define {macro} {value}\n" for macro, value in sorted(macros.items()))
    return kernel_from(lines + read(f"{name}.cu"), function, hopper=name in HOPPER_FILES)


def kernel_from(text: str, function: str, *, hopper: bool = False) -> Kernel:
    """A kernel whose text was generated. hopper: it has instructions that only these GPUs have."""
    shared = read("common.cuh") + (read("hopper.cuh") if hopper else "")
    text = shared + with_waiting(text)
    return Kernel(_compiled(text, _options(hopper=hopper)), function, _device())


def launch(
    function: Kernel,
    grid: int | Sequence[int],
    arguments: Sequence[Any],
    *,
    block: int | Sequence[int] = THREADS,
    shared: int = 0,
) -> Step:
    """A step that launches a kernel. A Tensor among the arguments passes its address, which is
    read when the step runs, and if it is Described, what it is as well; None passes a null
    pointer; numbers must be of the right NumPy type."""
    blocks = (grid,) if isinstance(grid, int) else tuple(grid)
    threads = (block,) if isinstance(block, int) else tuple(block)
    given = [0 if argument is None else argument for argument in arguments]
    function.reserve(shared)

    def step() -> None:
        values = tuple(map(_value, given))
        if _captures and is_possible(int(compute_capability())):
            launch_dependent(function.function, blocks, threads, values, shared)
        else:
            function.function(blocks, threads, values, shared_mem=shared)

    return step


def _value(argument: Any) -> Any:
    """What CuPy passes to a kernel."""
    if isinstance(argument, Described):
        return argument.value
    return argument.address if isinstance(argument, Tensor) else argument


def blocks_for(count: int, a_thread: int = 1) -> int:
    """Enough blocks of THREADS for `count` elements, but no more than keep every GPU busy."""
    return max(1, min(-(-count // (THREADS * a_thread)), 132 * 32))
