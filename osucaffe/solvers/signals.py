"""Owns what SIGINT, SIGHUP and SIGTERM do to a training run: nothing, a snapshot, or a stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

STOP, SNAPSHOT, NONE = "stop", "snapshot", "none"
EFFECTS = (STOP, SNAPSHOT, NONE)


class Signals:
    """While it is entered, signals become requests that the solver reads between iterations.

    A second SIGINT while the first still waits, or after one that asked for a stop, ends the
    program at once (KeyboardInterrupt). SIGTERM, by which batch systems announce the end of a job,
    asks for a stop. Only the main thread can enter it (a rule of Python). stopped_by: the number
    of the signal that asked for a stop, once `request` has told it; else 0.
    """

    def __init__(self, sigint: str = STOP, sighup: str = SNAPSHOT) -> None:
        for effect in (sigint, sighup):
            if effect not in EFFECTS:
                raise ValueError(f"effect {effect!r} is none of {', '.join(EFFECTS)}")
        self._effects = {signal.SIGINT: sigint, signal.SIGTERM: STOP, signal.SIGHUP: sighup}
        self._waiting: dict[int, bool] = dict.fromkeys(self._effects, False)
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
        """What is asked for since the last call: STOP, SNAPSHOT or NONE; a hangup comes last."""
        for number, effect in self._effects.items():
            if self._waiting[number]:
                self._waiting[number] = False
                if effect == STOP:
                    self.stopped_by = int(number)
                return effect
        return NONE

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and (self._waiting[number] or self._stopping):
            raise KeyboardInterrupt
        effect = self._effects[signal.Signals(number)]
        self._waiting[number] = effect != NONE
        self._stopping |= number == signal.SIGINT and effect == STOP


Request = Callable[[], str]
"""How a solver asks whether anybody wants it to stop or to snapshot."""
