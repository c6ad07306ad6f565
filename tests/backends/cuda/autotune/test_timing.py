"""Steps are timed as graphs where launching them takes the host as long as they run."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from osucaffe.backends.cuda.autotune import timing


class Clock:
    """Stands for a device on which what runs takes the time that it says."""

    def __init__(self) -> None:
        self.now, self.launches = 0.0, 0
        cuda = SimpleNamespace(Event=self._event, get_elapsed_time=lambda a, b: b.at - a.at)
        stream = SimpleNamespace(begin_capture=self._begin, end_capture=self._end)
        self.backend: Any = SimpleNamespace(cupy=SimpleNamespace(cuda=cuda), stream=stream)

    def _event(self) -> Any:
        event = SimpleNamespace(at=0.0, synchronize=lambda: None)
        event.record = lambda stream: setattr(event, "at", self.now)
        return event

    def _begin(self) -> None:
        self._before, self.now = self.now, 0.0

    def _end(self) -> Any:
        taken, self.now = self.now, self._before

        def launch(stream: Any) -> None:
            self.now += taken
            self.launches += 1

        return SimpleNamespace(launch=launch)

    def run(self, milliseconds: float) -> Any:
        """What takes so long."""
        times: list[float] = []

        def run() -> None:
            times.append(milliseconds)
            self.now += milliseconds

        run.times = times  # type: ignore[attr-defined]
        return run


@pytest.mark.parametrize(
    ("milliseconds", "runs"), [(0.01, 16), (0.1, 3), (0.4, 2), (0.6, 2), (1.9, 2)]
)
def test_runs(milliseconds: float, runs: int) -> None:
    clock = Clock()
    run = clock.run(milliseconds)
    first = timing.once(clock.backend, run)
    assert first == pytest.approx(milliseconds)
    assert timing.time_of(clock.backend, run, first, math.inf) == pytest.approx(milliseconds)
    assert len(run.times) == 1 + runs


@pytest.mark.parametrize(("best", "launches"), [(0.09, 2), (0.099, 4), (0.2, 4)])
def test_what_is_behind_is_not_run_again(best: float, launches: int) -> None:
    clock = Clock()
    timing.time_of(clock.backend, clock.run(0.1), 0.1, best)
    assert clock.launches == launches
