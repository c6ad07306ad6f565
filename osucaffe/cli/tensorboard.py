"""Owns the event files that TensorBoard shows: loss, learning rate, speed and all outputs."""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from ..errors import UserError
from ..solvers.observer import Display, Observer, Output, TestResult

logger = logging.getLogger("osucaffe")

_FLUSH_SECONDS = 10.0


class TensorBoard(Observer):
    """Writes what a solver displays to a new event file in `directory`, while it is entered.

    Tags: train/loss (smoothed), train/learning_rate, train/iterations_per_second,
    train/output/NAME, and test/NAME (test1/NAME and so on for further test nets).

    UserError where it cannot be begun. If it cannot be written any more later (a full disk), that
    is said once and training goes on. (tensorboardX's own SummaryWriter writes in a thread, which
    would end, and then training would wait for it for ever.)
    """

    def __init__(self, directory: str) -> None:
        self._path = Path(directory, f"events.out.tfevents.{time.time():.0f}.{platform.node()}")
        self._file: RecordWriter | None = None
        self._flushed = time.monotonic()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter(str(self._path))
            self._file.write(_content(file_version="brain.Event:2"))
            self._file.flush()
        except OSError as error:
            self._close()
            raise UserError(
                f"{directory}: cannot write event files there ({error.strerror}): "
                "give --tensorboard a directory that you may write, on a disk with room"
            ) from error

    def on_display(self, event: Display) -> None:
        """Write what the solver's log lines say."""
        values = {"train/loss": event.loss, "train/learning_rate": event.rate}
        if event.speed:
            values["train/iterations_per_second"] = event.speed
        due = time.monotonic() - self._flushed > _FLUSH_SECONDS
        self._write(values | _tagged("train/output", event.outputs), event.iteration, flush=due)

    def on_test(self, event: TestResult) -> None:
        """Write the scores of a test net."""
        group = f"test{event.net or ''}"
        values = _tagged(group, event.outputs)
        if event.loss is not None:
            values[f"{group}/total_loss"] = event.loss
        self._write(values, event.iteration, flush=True)

    def _write(self, values: dict[str, float], iteration: int, *, flush: bool) -> None:
        """Write values by their tags; give the file up where that fails."""
        if self._file is None:
            return
        try:
            for tag, value in values.items():
                self._file.write(_content(step=iteration, summary=scalar(tag, value)))
            if flush:
                self._file.flush()
                self._flushed = time.monotonic()
        except OSError as error:
            logger.warning("%s cannot be written any more: %s", self._path, error.strerror)
            self._close()

    def _close(self) -> None:
        """Close the file, whether or not it takes what it was still to be given."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._write({}, 0, flush=True)
        self._close()


def _content(**fields: Any) -> bytes:
    """An event of this moment, as files hold it."""
    return Event(wall_time=time.time(), **fields).SerializeToString()


def _tagged(group: str, outputs: list[Output]) -> dict[str, float]:
    """Outputs by tag; a blob of several elements has a tag for each."""
    counts = Counter(output.name for output in outputs)
    return {
        f"{group}/{output.name}"
        + (f"/{output.index}" if counts[output.name] > 1 else ""): output.value
        for output in outputs
    }
