"""Owns the clock between parts of a net's steps, for backends whose steps end when they return."""

from __future__ import annotations

import time
from typing import Any


class Timer:
    """Times of marks between steps: `begin`, `mark` behind each part, `read`.

    track: the device whose time it is, or "" for the host's own.
    """

    track = ""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def begin(self) -> None:
        """The first part is about to be run."""
        self._marks = [time.perf_counter()]

    def mark(self) -> None:
        """A part has been run."""
        self._marks.append(time.perf_counter())

    def time_of(self, event: Any) -> float:
        """When a device came to an event, on the same clock; the host has no such events."""
        raise NotImplementedError

    def read(self) -> list[float]:
        """Where the first part began and where each ended, in seconds of `time.perf_counter`."""
        return self._marks
