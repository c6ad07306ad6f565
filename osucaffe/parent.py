"""Ends this process when its parent dies."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SIGNAL_AT_PARENTS_DEATH = 1  # of prctl


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when the thread that has started it ends (on Linux).

    parent: the process id of its parent; where that has ended by now, so does this one.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
