"""The number of cores this process may use, and of threads it computes on."""

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


def idle_seconds() -> float:
    """The time that the usable cores have been idle together since the machine started, in seconds;
    0 where the system does not tell."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    idle = 0
    try:
        with open("/proc/stat") as stat:
            for line in stat:
                name, *counts = line.split()
                if not name.startswith("cpu"):
                    break
                if name[3:] and int(name[3:]) in cores:
                    idle += int(counts[3]) + int(counts[4])  # with what waits for a disk
    except OSError:
        return 0.0
    return idle / os.sysconf("SC_CLK_TCK")
