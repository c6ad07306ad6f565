"""Owns the choice among several ways to compute the same: by timing, remembered on disk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tensor import sequence
from .cache import cache_folder, keep
from .kernels import captured
from .out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from .backend import Cuda

TIMED, TRIALS = 4, 3
"""Runs on the clock, and how often graphs of so many are timed."""
HOPELESS = 1.5
"""What is so many times as slow as the best in one run is not run again."""
TRIAL_WORDS = 2**22
"""After so many numbers, those of memory to try kernels on begin again."""
BRIEF = 2.0
"""Milliseconds: what takes no longer is timed as a graph, as it runs in training: launched one by
one, even kernels of 30 us wait for the host, which takes 10 to 20 us for each."""
HOST = 0.03
"""Milliseconds that the host may take for a launch."""


class Choices:
    """Which way was fastest, by a text that says what is computed.

    One file for each device and version of the libraries. What cannot be read or written is
    measured anew: the cache never stops a run.
    """

    def __init__(self, name: str) -> None:
        self.path = cache_folder() / f"{name}.json"
        try:
            self._chosen = {
                key: (str(choice), float(taken))
                for key, (choice, taken) in json.loads(self.path.read_text()).items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            self._chosen = {}

    def get(self, key: str) -> tuple[str, float] | None:
        """What was chosen and the milliseconds it took, if it was."""
        return self._chosen.get(key)

    def put(self, key: str, choice: str, taken: float) -> None:
        """Remember a choice, on disk too (others may write there at the same time)."""
        self._chosen[key] = (choice, taken)
        with contextlib.suppress(OSError):
            keep(self.path, json.dumps(self._chosen, indent=0, sort_keys=True).encode())


def device_name(backend: Cuda) -> str:
    """What the device is called."""
    properties = backend.cupy.cuda.runtime.getDeviceProperties(backend.device.id)
    return str(properties["name"].decode())


def trial_memory(backend: Cuda, nbytes: int) -> Any:
    """Memory to try a kernel on: finite numbers of either sign in every element type."""
    words = -(-nbytes // 4)
    memory = backend.allocate(words * 4)
    number = backend.cupy.arange(min(words, TRIAL_WORDS), dtype=np.uint32) * np.uint32(2654435761)
    # Without an exponent's highest bit, every float32, bfloat16 and float16 is below 2.
    number &= np.uint32(0xBFFFBFFF)
    for start in range(0, words, TRIAL_WORDS):
        piece = memory.view(np.uint32)[start : start + TRIAL_WORDS]
        piece[:] = number[: piece.size]
    return memory


def time_of(backend: Cuda, run: Callable[[], None], times: int = TIMED) -> float:
    """Milliseconds that one run takes on the device, after a first one."""
    stream = backend.stream
    once = _elapsed(backend, run)
    if once > BRIEF:
        return min(once, *(_elapsed(backend, run) for _ in range(times)))
    if once < BRIEF / 20:
        times *= 4  # else the device would wait for the host, which launches a graph in 10 us
    graph = captured(stream, sequence([run] * times))

    def after_another() -> float:
        graph.launch(stream)  # keeps the device busy while the host comes to the next
        return _elapsed(backend, lambda: graph.launch(stream))

    return min(after_another() for _ in range(TRIALS)) / times


def _elapsed(backend: Cuda, run: Callable[[], None]) -> float:
    event = backend.cupy.cuda.Event
    begin, end = event(), event()
    begin.record(backend.stream)
    run()
    end.record(backend.stream)
    end.synchronize()
    return float(backend.cupy.cuda.get_elapsed_time(begin, end))


def fastest(backend: Cuda, runs: Sequence[Callable[[], None]]) -> tuple[int | None, float]:
    """The number of the fastest of these and its milliseconds; those that fail drop out.

    Where none is left for want of memory, that error is raised.
    """
    best: int | None = None
    least = float("inf")
    short: RuntimeError | None = None
    for number, run in enumerate(runs):
        try:
            run()  # what it loads or compiles is not to be timed
            if _elapsed(backend, run) > HOPELESS * (least + HOST):
                continue
            taken = time_of(backend, run)
        except RuntimeError as error:
            if is_out_of_memory(error):
                short = error
            continue
        if taken < least:
            best, least = number, taken
    if best is None and short is not None:
        raise short
    return best, least
