"""Owns how much a net waits for its records, which the log says once where it is much."""

from __future__ import annotations

import logging

WATCHED = 10.0
"""Seconds from the first batch on."""
MUCH = 0.2
"""Of that time."""

_log = logging.getLogger("osucaffe")


class Waiting:
    """The time from a net's first batch on, and what of it the net has waited for batches.

    title: the layer's, for the log. remedy: the options that may help.
    """

    def __init__(self, title: str, remedy: str) -> None:
        self._title, self._remedy = title, remedy
        self._first: float | None = None
        self._waited = 0.0
        self._told = False

    def note(self, asked: float, came: float) -> None:
        """A batch was asked for, and came, at these times (seconds of a clock)."""
        if self._told:
            return
        if self._first is None:
            self._first = came  # which always takes long
            return
        self._waited += came - asked
        passed = came - self._first
        if passed >= WATCHED:
            self._told = True
            if self._waited > MUCH * passed:
                _log.info(
                    "%s: the net waits for its records %.0f %% of the time (see %s)",
                    self._title,
                    100 * self._waited / passed,
                    self._remedy,
                )
