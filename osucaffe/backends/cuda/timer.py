"""Timing of parts of a net's steps on the GPU, by CUDA events on the stream."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..backend import Timer
from .gpu import Gpu
from .runtime.compile import kernel_from
from .runtime.launch import launch

HOLD = """
extern "C" __global__ void hold(uint64_t nanoseconds) {
    PDL_BEGIN;
    uint64_t start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}
"""
LONGEST_HOLD = 0.2


class DeviceTimer(Timer):
    """Times of the device's work. What is launched between `begin` and `read` waits after a
    kernel that holds the device up for as long as launching took last time: so the gaps of
    launching one by one, which a graph does not have, are not counted."""

    def __init__(self, backend: Gpu) -> None:
        super().__init__()
        self.track = f"GPU {backend.device.id}"
        self._backend = backend
        self._events: list[Any] = []
        self._used = 0
        self._start = 0.0
        self._hold = 1e-3

    def begin(self) -> None:
        self._backend.synchronize()
        self._used = 0
        self.mark()
        self._start = time.perf_counter()
        nanoseconds = np.uint64(self._hold * 1e9)
        launch(kernel_from(HOLD, "hold"), 1, [nanoseconds], block=1)()
        self.mark()

    def mark(self) -> None:
        if self._used == len(self._events):
            self._events.append(self._backend.cupy.cuda.Event())
        self._events[self._used].record(self._backend.stream)
        self._used += 1

    def time_of(self, event: Any) -> float:
        event.synchronize()
        elapsed: float = self._backend.cupy.cuda.get_elapsed_time(self._events[0], event)
        return self._start + elapsed / 1e3

    def read(self) -> list[float]:
        taken = time.perf_counter() - self._start
        self._hold = min(1.2 * taken + 1e-4, LONGEST_HOLD)
        return [self.time_of(event) for event in self._events[1 : self._used]]
