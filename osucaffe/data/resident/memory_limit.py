"""The decision whether records are cached in memory, and the log lines that explain it."""

from __future__ import annotations

import logging

SHARE = 0.5
"""The share of memory, free before nets are built, that their records may take by default."""
_log = logging.getLogger("osucaffe")


def may_stay(size: int, free: int, title: str) -> bool:
    """Whether records of `size` bytes may be cached in the memory free before nets are built."""
    if size > free * SHARE:
        log_refusal(title, size, free)
        return False
    return True


def log_stay(title: str, count: int, size: int, free: int, how: str = "") -> None:
    """Log that a layer's records will be cached."""
    what = f"{_amount(size)}, of {_amount(free)} that are free (--cache)"
    _log.info("%s: its %d records will stay in memory%s: %s", title, count, how, what)


def log_refusal(title: str, size: int, free: int) -> None:
    """Log that they will not, for lack of memory."""
    what = f"to stay they take {_amount(size)}, and {_amount(free)} are free (--cache)"
    _log.info("%s: its records are read again in each epoch: %s", title, what)


def _amount(nbytes: float) -> str:
    return f"{nbytes / 1e9:.3g} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.3g} MB"
