"""The measurement of a net's waits for records, logged once if they are long."""

from __future__ import annotations

import logging

WATCHED = 10.0
"""Seconds from the first batch on that are measured."""
MUCH = 0.2
"""The share of that time from which it is logged."""

_log = logging.getLogger("osucaffe")


class StallMonitor:
    """Measures how long a net waits for batches, from its first one on.

    title: the layer's, for the log. remedy: the options that may help.
    """

    def __init__(self, title: str, remedy: str) -> None:
        self._title, self._remedy = title, remedy
        self._first: float | None = None
        self._waited = 0.0
        self._reported = False

    def note(self, start: float, came: float) -> None:
        """A batch was requested, and arrived, at these times (seconds of a clock)."""
        if self._reported:
            return
        if self._first is None:
            self._first = came  # which is always slow
            return
        self._waited += came - start
        passed = came - self._first
        if passed >= WATCHED:
            self._reported = True
            if self._waited > MUCH * passed:
                _log.info(
                    "%s: the net waits for its records %.0f %% of the time (see %s)",
                    self._title,
                    100 * self._waited / passed,
                    self._remedy,
                )
