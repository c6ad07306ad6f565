"""Launches of kernels, as steps, and their capture as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...tensor import Run, Tensor
from . import device
from .compile import Kernel
from .driver import Described, launch_early, launches_early

THREADS = 256
BLOCKS_A_MULTIPROCESSOR = 32
"""The most that any GPU holds at once."""


_captures: list[Any] = []
"""The streams that are being captured."""


def is_capturing() -> bool:
    """Whether what is launched now becomes a part of a graph."""
    return bool(_captures)


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


def launch(
    function: Kernel,
    grid: int | Sequence[int],
    arguments: Sequence[Any],
    *,
    block: int | Sequence[int] = THREADS,
    shared: int = 0,
) -> Run:
    """A step that launches a kernel. A Tensor among the arguments passes its address, which is
    read when the step runs, and if it is Described, what it is as well; None passes a null
    pointer; numbers become what the kernel declares. RuntimeError where no block fits the GPU."""
    blocks = (grid,) if isinstance(grid, int) else tuple(grid)
    threads = (block,) if isinstance(block, int) else tuple(block)
    converted = [
        kind(argument) if kind else 0 if argument is None else argument
        for kind, argument in zip(function.number_types, arguments, strict=True)
    ]
    if shared > (most := device.current().shared_memory):
        raise RuntimeError(f"a block wants {shared} bytes of shared memory, this GPU has {most}")
    function.reserve(shared)

    def step() -> None:
        values = tuple(map(_value, converted))
        if is_capturing() and launches_early(device.current()):
            launch_early(function.function, blocks, threads, values, shared)
        else:
            function.function(blocks, threads, values, shared_mem=shared)

    return step


def _value(argument: Any) -> Any:
    """What CuPy passes to a kernel."""
    if isinstance(argument, Described):
        return argument.value
    return argument.address if isinstance(argument, Tensor) else argument


def blocks_for(count: int, a_thread: int = 1) -> int:
    """Enough blocks of THREADS for `count` elements, but no more than keep the GPU busy."""
    most = device.current().sm_count * BLOCKS_A_MULTIPROCESSOR
    return max(1, min(-(-count // (THREADS * a_thread)), most))
