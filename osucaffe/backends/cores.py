"""Owns how many cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores that the system lets this process run on (those of the machine, where it does not
    tell, as on macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
