"""Owns launches of kernels, as steps: their arguments, grids, and what graphs allow besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...tensor import Step, Tensor
from . import device
from .compile import Kernel
from .graphs import is_capturing
from .pdl import is_possible, launch_early
from .tensor_map import Described

THREADS = 256
BLOCKS_A_MULTIPROCESSOR = 32
"""The most that any GPU holds at once."""


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
    pointer; numbers must be of the right NumPy type. RuntimeError where no block fits the GPU."""
    blocks = (grid,) if isinstance(grid, int) else tuple(grid)
    threads = (block,) if isinstance(block, int) else tuple(block)
    given = [0 if argument is None else argument for argument in arguments]
    if shared > (most := device.current().shared_memory):
        raise RuntimeError(f"a block wants {shared} bytes of shared memory, this GPU has {most}")
    function.reserve(shared)

    def step() -> None:
        values = tuple(map(_value, given))
        if is_capturing() and is_possible(device.current()):
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
