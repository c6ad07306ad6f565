"""Owns how many cores this process may use, and how many threads it computes on."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores that the system lets this process run on (those of the machine, where it does not
    tell, as on macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def computing_threads(processes: int = 1) -> int:
    """The first number in `$OMP_NUM_THREADS`; or else the share of the usable cores that each of so
    many processes has."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else max(1, usable_cores() // processes)
