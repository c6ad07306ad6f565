"""The live display below a training run's log: progress, speed, loss, scores, time left."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.constrain import Constrain
from rich.live import Live as RichLive
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from ...log import StandardError
from ...messages import one_line
from ...solvers.observer import Display, Observer, TestResult
from ...solvers.solver import Solver

_LEFT = len("^C^C")
"""Columns after the bar: what the terminal echoes there must not begin a line, which nothing would
erase."""


class Live(Observer):
    """Shows a solver's progress on the terminal while it is entered.

    The bar follows `solver.iteration`, so that it moves between the solver's display lines too.
    """

    def __init__(
        self, solver: Solver, handler: StandardError, console: Console | None = None
    ) -> None:
        self._solver = solver
        self._handler = handler
        self._console = console or Console(stderr=True)
        self._loss = ""
        self._scores: dict[tuple[int, str], str] = {}
        self._started = (solver.iteration, time.monotonic())
        self._progress = Progress(
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            auto_refresh=False,
            expand=True,
        )
        self._task = self._progress.add_task(
            "",
            total=solver.param.max_iter,
            completed=solver.iteration,
            speed="",
            left="",
        )
        self._live = RichLive(
            get_renderable=self._render, console=self._console, refresh_per_second=4
        )

    def on_display(self, event: Display) -> None:
        """Note the loss."""
        self._loss = f"loss {event.loss:.4g}"

    def on_test(self, event: TestResult) -> None:
        """Note the scores."""
        for output in event.outputs:
            net = f"#{event.net} " if len(self._solver.test_nets) > 1 else ""
            self._scores[event.net, output.name] = f"test {net}{output.name} {output.value:.4g}"

    def _render(self) -> Group:
        """The scores, on as many lines as they take, and below them the bar."""
        first, start = self._started
        done = self._solver.iteration
        seconds = time.monotonic() - start
        speed = (done - first) / seconds if seconds else 0.0
        left = (self._solver.param.max_iter - done) / speed if speed else None
        self._progress.update(
            self._task,
            completed=done,
            speed=f"{speed:{',.0f' if speed >= 100 else '.3g'}} iter/s" if speed else "",
            left="" if left is None else f"{_clock(left)} left",
        )
        epochs = self._solver.epochs
        epoch = f"epoch {epochs.epoch(done):.3g}" if epochs else ""
        scores = "  ".join(filter(None, [epoch, self._loss, *self._scores.values()]))
        bar = Constrain(self._progress, max(1, self._console.width - _LEFT))
        said = scores or f"training {self._solver.net.name}"
        return Group(Text(one_line(said)), bar)

    def __enter__(self) -> Live:
        self._live.start()
        self._handler.write = self._write
        return self

    def __exit__(self, *_: object) -> None:
        self._handler.write = None
        # What was not reached is not a result: the time left would stand there, and pass for one.
        self._live.transient = self._solver.iteration < self._solver.param.max_iter
        self._live.stop()

    def _write(self, line: str) -> None:
        """Print a log line above the display."""
        self._console.print(Text(line), soft_wrap=True)


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds: 1:02:03 or 2:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
