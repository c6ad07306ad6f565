"""Owns the choice among several ways to compute the same: by timing, remembered on disk."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..tensor import sequence
from .cache import cache_folder, keep
from .kernels import captured
from .out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from .backend import Cuda

logger = logging.getLogger("osucaffe")

TRIALS = 3
"""Times that a graph of runs is on the clock."""
GRAPHED, FEWEST, MOST = 0.5, 2, 16
"""Milliseconds that such a graph should take, and how many runs may be in it."""
HOPELESS = 1.1
"""What is so many times as slow as the best in one run is not run again."""
TRIAL_WORDS = 2**18
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


def trial_numbers() -> np.ndarray:
    """What memory to try kernels on is filled with: TRIAL_WORDS words."""
    number = np.arange(TRIAL_WORDS, dtype=np.uint32) * np.uint32(2654435761)
    # Without an exponent's highest bit, every float32, bfloat16 and float16 is below 2.
    return number & np.uint32(0xBFFFBFFF)


def upload_trial_numbers(backend: Cuda) -> int:
    """Their address on the device. Once, for all trials: while kernels are compiled, the host waits
    10 to 20 ms for an upload."""
    logger.info(
        "Looking for the fastest kernels on GPU %d: up to half a minute, once for each net "
        "(remembered in %s)",
        backend.device.id,
        cache_folder(),
    )
    return backend.upload(trial_numbers())


def trial_memory(backend: Cuda, nbytes: int) -> Any:
    """Memory to try a kernel on: finite numbers of either sign in every element type."""
    size = -(-nbytes // 4) * 4
    memory = backend.allocate(size)
    begin, runtime = int(memory.data.ptr), backend.cupy.cuda.runtime
    source, filled = backend.trial_source, 0
    while filled < size:
        more = min(filled or TRIAL_WORDS * 4, size - filled)
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(begin + filled, source, more, kind, backend.stream.ptr)
        source, filled = begin, filled + more
    return memory


def time_of(backend: Cuda, run: Callable[[], None]) -> float:
    """Milliseconds that one run takes on the device, after a first one."""
    return _time_of(backend, run, _elapsed(backend, run))


def _time_of(backend: Cuda, run: Callable[[], None], once: float) -> float:
    """The same, where a run has just taken so long."""
    if once > BRIEF:
        return min(once, _elapsed(backend, run))
    times = max(FEWEST, min(MOST, math.ceil(GRAPHED / once)))
    graph = captured(backend.stream, sequence([run] * times))
    graph.launch(backend.stream)  # keeps the device busy while the host comes to the next
    launches = [lambda: graph.launch(backend.stream)] * TRIALS
    return min(_laps(backend, launches)) / times


def _laps(backend: Cuda, runs: Sequence[Callable[[], None]]) -> list[float]:
    """Milliseconds of each on the device, one behind the other."""
    event = backend.cupy.cuda.Event
    events = [event() for _ in range(len(runs) + 1)]
    events[0].record(backend.stream)
    for run, end in zip(runs, events[1:], strict=True):
        run()
        end.record(backend.stream)
    events[-1].synchronize()
    elapsed = backend.cupy.cuda.get_elapsed_time
    return [float(elapsed(begin, end)) for begin, end in itertools.pairwise(events)]


def _elapsed(backend: Cuda, run: Callable[[], None]) -> float:
    return _laps(backend, [run])[0]


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
            once = _elapsed(backend, run)
            if once > HOPELESS * (least + HOST):
                continue
            taken = _time_of(backend, run, once)
        except RuntimeError as error:
            if is_out_of_memory(error):
                short = error
            continue
        if taken < least:
            best, least = number, taken
    if best is None and short is not None:
        raise short
    return best, least
