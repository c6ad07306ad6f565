"""What SIGINT, SIGHUP and SIGTERM do to a training run: nothing, a snapshot, or a stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

STOP, SNAPSHOT, NONE = "stop", "snapshot", "none"
EFFECTS = (STOP, SNAPSHOT, NONE)


class Signals:
    """While it is entered, signals become requests that the solver reads between iterations.

    A second SIGINT while the first is pending, or after one that requested a stop, ends the
    program at once (KeyboardInterrupt). SIGTERM, by which batch systems announce the end of a job,
    requests a stop. Only the main thread can enter it (a rule of Python). stopped_by: the number
    of the signal that requested a stop, once `request` has returned it; else 0.
    """

    def __init__(self, sigint: str = STOP, sighup: str = SNAPSHOT) -> None:
        for effect in (sigint, sighup):
            if effect not in EFFECTS:
                raise ValueError(f"effect {effect!r} is none of {', '.join(EFFECTS)}")
        self._effects = {signal.SIGINT: sigint, signal.SIGTERM: STOP, signal.SIGHUP: sighup}
        self._pending: dict[int, bool] = dict.fromkeys(self._effects, False)
        self._stopping = False
        self.stopped_by = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._receive) for number in self._effects}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def request(self) -> str:
        """The request since the last call: STOP, SNAPSHOT or NONE; a hangup comes last."""
        for number, effect in self._effects.items():
            if self._pending[number]:
                self._pending[number] = False
                if effect == STOP:
                    self.stopped_by = int(number)
                return effect
        return NONE

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (self._pending[number] or self._stopping):
            raise KeyboardInterrupt
        effect = self._effects[signal.Signals(number)]
        self._pending[number] = effect != NONE
        self._stopping |= number == signal.SIGINT and effect == STOP


Request = Callable[[], str]
"""Polled by a solver for a request to stop or to snapshot."""
