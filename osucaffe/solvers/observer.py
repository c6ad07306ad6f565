"""The events that a solver reports while it trains: to the live display, TensorBoard, tests.

Logging is not done here: the solver itself logs. An observer must not change the solver.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Output:
    """One number of a net's output: element `index` of all outputs, of blob `name`."""

    index: int
    name: str
    value: float
    loss_weight: float = 0.0


@dataclass(frozen=True)
class Display:
    """The state at a displayed iteration.

    loss: smoothed over `average_loss` iterations. speed: iterations per second since the
    last display. seconds: time since then. rate: the learning rate. records: the number trained
    on so far; epoch: that in epochs (None if the size of the data set is not known).
    """

    iteration: int
    max_iter: int
    loss: float
    rate: float
    speed: float
    seconds: float
    outputs: list[Output] = field(default_factory=list)
    records: int = 0
    epoch: float | None = None


@dataclass(frozen=True)
class TestResult:
    """The means of one test net's outputs over its `test_iter` batches.

    loss: the mean of the total loss, only with `test_compute_loss`.
    """

    __test__ = False  # not a test class of pytest

    iteration: int
    net: int
    outputs: list[Output]
    loss: float | None = None


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that has been written completely."""

    iteration: int
    model: str
    state: str


class Observer:
    """Called by the solver, in its thread. Inherit from it to get empty defaults."""

    def on_display(self, event: Display) -> None:
        """Every `display` iterations."""

    def on_test(self, event: TestResult) -> None:
        """After each test net."""

    def on_snapshot(self, event: Snapshot) -> None:
        """After each snapshot."""

    def on_end(self, iteration: int, stopped: bool) -> None:
        """After `solve`; stopped: a signal ended it before max_iter."""
