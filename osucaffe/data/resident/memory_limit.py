"""Owns the decision whether records stay in memory, and the log lines that tell it and why."""

from __future__ import annotations

import logging

SHARE = 0.5
"""Of the memory that is free before nets have theirs: what their records may take by default."""
_log = logging.getLogger("osucaffe")


def may_stay(size: int, room: int, title: str) -> bool:
    """Whether records of so many bytes may take so much of the room, before nets have theirs."""
    if size > room * SHARE:
        log_refusal(title, size, room)
        return False
    return True


def log_stay(title: str, count: int, size: int, room: int, how: str = "") -> None:
    """Say that a layer's records will stay."""
    what = f"{_amount(size)}, of {_amount(room)} that are free (--cache)"
    _log.info("%s: its %d records will stay in memory%s: %s", title, count, how, what)


def log_refusal(title: str, size: int, room: int) -> None:
    """Say that they will not, for want of room."""
    what = f"to stay they take {_amount(size)}, and {_amount(room)} are free (--cache)"
    _log.info("%s: its records are read anew in each epoch: %s", title, what)


def _amount(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"
