"""Owns the event files that TensorBoard shows: loss, learning rate, speed and all outputs."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from tensorboardX import SummaryWriter

from ..errors import UserError
from ..solvers.observer import Display, Observer, Output, TestResult


class TensorBoard(Observer):
    """Writes what a solver displays to a new event file in `directory`, while it is entered.

    Tags: train/loss (smoothed), train/learning_rate, train/iterations_per_second,
    train/output/NAME, and test/NAME (test1/NAME and so on for further test nets).
    """

    def __init__(self, directory: str) -> None:
        try:
            self._writer = SummaryWriter(directory)
        except OSError as error:
            raise UserError(
                f"{directory}: cannot write event files there ({error.strerror}): "
                "give --tensorboard a directory that you may write"
            ) from error

    def on_display(self, event: Display) -> None:
        """Write what the solver's log lines say."""
        at = event.iteration
        self._writer.add_scalar("train/loss", event.loss, at)
        self._writer.add_scalar("train/learning_rate", event.rate, at)
        if event.speed:
            self._writer.add_scalar("train/iterations_per_second", event.speed, at)
        self._add("train/output", event.outputs, at)

    def on_test(self, event: TestResult) -> None:
        """Write the scores of a test net."""
        self._add(f"test{event.net or ''}", event.outputs, event.iteration)
        if event.loss is not None:
            self._writer.add_scalar(
                f"test{event.net or ''}/total_loss", event.loss, event.iteration
            )
        self._writer.flush()

    def _add(self, group: str, outputs: list[Output], iteration: int) -> None:
        """Write outputs; a blob of several elements gets a tag for each."""
        counts = Counter(output.name for output in outputs)
        for output in outputs:
            part = f"/{output.index}" if counts[output.name] > 1 else ""
            self._writer.add_scalar(f"{group}/{output.name}{part}", output.value, iteration)

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()
