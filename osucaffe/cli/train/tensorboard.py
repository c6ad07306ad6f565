"""The event files that TensorBoard shows: scalars, histograms and the graph."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import make_histogram, scalar

from ...errors import UserError
from ...solvers.observer import Display, Observer, Output, TestResult
from ...solvers.solver import Solver

logger = logging.getLogger("osucaffe")

_FLUSH_SECONDS = 10.0
_BINS = 64
_SAMPLE = 1 << 20
"""For larger tensors, histograms count about this many elements, evenly spaced."""


class TensorBoard(Observer):
    """Writes what a solver displays to a new event file in `directory`, while it is entered.

    Tags: train/loss (smoothed), train/learning_rate, train/epoch, train/iterations_per_second,
    train/output/NAME, and test/NAME (test1/NAME and so on for further test nets). For a watched
    solver also: the graph of the training net; the loss after the last update; and at each
    test (without test nets, at each display of a single-process run) weights/LAYER/NUMBER and
    gradients/LAYER/NUMBER as histograms.

    UserError if it cannot be created. If writing fails later (a full disk), that is logged
    once and training goes on. (tensorboardX's SummaryWriter writes in a thread, which
    would end, and then training would wait for it for ever.)
    """

    def __init__(self, directory: str) -> None:
        # A name that nobody can foresee: the writer would follow a link that lies there.
        own = f"{time.time():.0f}.{platform.node()}.{os.urandom(8).hex()}"
        self._path = Path(directory, f"events.out.tfevents.{own}")
        self._file: RecordWriter | None = None
        self._flushed = time.monotonic()
        self._solver: Solver | None = None
        self._begun = 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = RecordWriter(str(self._path))
            self._file.write(_content(file_version="brain.Event:2"))
            self._file.flush()
        except OSError as error:
            self._close()
            raise UserError(
                f"{directory}: cannot write event files there ({error.strerror}): "
                "give --tensorboard a writable directory, on a disk with free space"
            ) from error

    def watch(self, solver: Solver) -> None:
        """Also write a solver's nets whenever it displays or tests; write their graph now."""
        from .tensorboard_graph import graph_of

        self._solver, self._begun = solver, solver.iteration
        self._write_events([{"graph_def": graph_of(solver.net)}], flush=True)

    def on_display(self, event: Display) -> None:
        """Write the values of the solver's log lines."""
        values = {"train/loss": event.loss, "train/learning_rate": event.rate}
        if event.epoch is not None:
            values["train/epoch"] = event.epoch
        if event.speed:
            values["train/iterations_per_second"] = event.speed
        due = time.monotonic() - self._flushed > _FLUSH_SECONDS
        self._write(values | _tagged("train/output", event.outputs), event.iteration, flush=due)
        solver = self._solver
        if solver and not solver.test_nets and solver.group.size == 1:
            self._look_at(solver, event.iteration)

    def on_test(self, event: TestResult) -> None:
        """Write the scores of a test net."""
        group = f"test{event.net or ''}"
        values = _tagged(group, event.outputs)
        if event.loss is not None:
            values[f"{group}/total_loss"] = event.loss
        self._write(values, event.iteration, flush=True)
        if self._solver and not event.net:
            self._look_at(self._solver, event.iteration)

    def on_end(self, iteration: int, stopped: bool) -> None:
        """Write the loss that the log ends with."""
        if self._solver and not stopped and self._solver.due(self._solver.param.display):
            self._write({"train/loss": self._solver.loss}, iteration, flush=True)

    def _look_at(self, solver: Solver, iteration: int) -> None:
        """Write histograms of weights and gradients as they are now."""
        if self._file is None:
            return
        read = solver.backend.read
        scale = float(read(solver.loss_scale.factor).item()) if solver.loss_scale else 1.0
        values = []
        for weight in solver.net.parameters:
            values += _histogram(f"weights/{weight.name}", read(weight.blob.data))
            if weight.lr_mult and solver.iteration > self._begun:
                values += _histogram(f"gradients/{weight.name}", read(weight.blob.diff) / scale)
        self._write_events([{"step": iteration, "summary": Summary(value=values)}], flush=True)

    def _write(self, values: dict[str, float], iteration: int, *, flush: bool) -> None:
        """Write values by their tags."""
        events = [
            {"step": iteration, "summary": scalar(tag, value)} for tag, value in values.items()
        ]
        self._write_events(events, flush=flush)

    def _write_events(self, events: list[dict[str, Any]], *, flush: bool) -> None:
        """Write events; give the file up if that fails."""
        if self._file is None:
            return
        try:
            for event in events:
                self._file.write(_content(**event))
            if flush:
                self._file.flush()
                self._flushed = time.monotonic()
        except OSError as error:
            logger.warning("%s cannot be written any more: %s", self._path, error.strerror)
            self._close()

    def _close(self) -> None:
        """Close the file, even if buffered events cannot be written."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
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


def _histogram(tag: str, values: np.ndarray) -> list[Summary.Value]:
    """The histogram of the finite values; nothing if there are none."""
    values = values.ravel()[:: max(1, values.size // _SAMPLE)].astype(np.float64)
    values = values[np.isfinite(values)]
    if not values.size:
        return []
    return [Summary.Value(tag=tag, histo=make_histogram(values, _BINS))]
