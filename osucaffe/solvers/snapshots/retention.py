"""The files of a training run that are kept: its best model by a test output, and its newest
snapshots; and early stopping.

The best model is PREFIX_best.caffemodel; PREFIX_best.json records its value and iteration, so that
a resumed run does not replace it by a worse one.
"""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

from ...errors import UserError, listed, nearest, reason
from ...files import read_bytes, write_bytes
from ...parsing import as_int, from_json
from ...proto import write_weights
from ..observer import Observer, Snapshot, TestResult
from ..signals import STOP, Request
from ..solver import Solver
from . import snapshot

logger = logging.getLogger("osucaffe")


class KeepNewest(Observer):
    """Deletes the older snapshots of a run whenever a new one is complete: `count` remain.

    Those of a resumed run from before it stopped are included. Only snapshots of this run are
    deleted: other files with its prefix stay. Only on rank 0.
    """

    def __init__(self, solver: Solver, count: int) -> None:
        self._count = count
        existing = snapshot.listed(solver.param.snapshot_prefix) if solver.iteration else []
        self._made = [event for event in existing if event.iteration <= solver.iteration]

    def on_snapshot(self, event: Snapshot) -> None:
        """Delete surplus ones, the state first: where a state exists, its model does."""
        self._made = [other for other in self._made if other != event] + [event]
        while len(self._made) > self._count:
            old = self._made.pop(0)
            try:
                for file in old.state, old.model:
                    Path(file).unlink(missing_ok=True)
            except OSError as error:
                logger.warning("%s cannot be deleted: %s", error.filename, reason(error))
            else:
                logger.info("Deleted %s and its model: --keep %d", old.state, self._count)


class KeepBest(Observer):
    """Writes the model whenever a test output reaches a new best value.

    output: of the first test net that has it; its first element. Lower is better for losses (with a
    loss_weight, or "loss" in the name), higher for others. patience: tests without a better value
    after which `request` requests a stop; 0: never. All ranks have one, rank 0 writes. UserError
    if no test net has that output.
    """

    def __init__(self, solver: Solver, output: str, patience: int) -> None:
        self._solver, self._name, self._patience = solver, output, patience
        self._net = _net_with(solver, output)
        prefix = solver.param.snapshot_prefix
        snapshot.check_writable(solver.param, solver.file)
        end = ".h5" if snapshot.named(solver.param, 0).model.endswith(".h5") else ""
        self.model, self._note = snapshot.best_model(prefix, end), Path(f"{prefix}_best.json")
        self.value, self.iteration, self._worse = math.nan, -1, 0
        if solver.iteration:
            self._go_on()

    def request(self, ask: Request) -> Request:
        """The request function for a solver: stop when patience is exhausted, else as `ask`."""

        def stop_or_ask() -> str:
            exhausted = 0 < self._patience <= self._worse
            return STOP if exhausted else ask()

        return stop_or_ask

    def on_test(self, event: TestResult) -> None:
        """Compare, and write the model or count."""
        if event.net != self._net:
            return
        output = next(output for output in event.outputs if output.name == self._name)
        sign = -1 if output.loss_weight or "loss" in output.name.lower() else 1
        if sign * output.value > sign * self.value or (
            math.isnan(self.value) and not math.isnan(output.value)
        ):
            self.value, self.iteration, self._worse = output.value, event.iteration, 0
            if not self._solver.group.rank:
                self._write()
            return
        self._worse += 1
        if self._worse == self._patience:
            logger.info(
                "Stopping: %d tests without a better %s than %g at iteration %d (--patience)",
                *(self._worse, self._name, self.value, self.iteration),
            )

    def _write(self) -> None:
        """The model first: where a note exists, its model does."""
        write_weights(self.model, self._solver.net.to_proto(diff=False), checksum=True)
        note = {"output": self._name, "value": self.value, "iteration": self.iteration}
        write_bytes(self._note, json.dumps(note).encode() + b"\n")
        logger.info("Best %s so far: %g, kept in %s", self._name, self.value, self.model)

    def _go_on(self) -> None:
        """Restore the best value from before the run stopped."""
        group, done = self._solver.group, self._solver.iteration
        note = group.broadcast_object(None if group.rank else _read(self._note))
        if not note or note[0] != self._name or note[2] > done:
            return
        _, self.value, self.iteration = note
        interval = self._solver.param.test_interval
        self._worse = max(0, (done - 1) // interval - self.iteration // interval)


def _read(path: Path) -> tuple[str, float, int] | None:
    """Output, value and iteration in the note of an earlier run; None where there is no such."""
    try:
        note = from_json(read_bytes(path))
        return str(note["output"]), float(note["value"]), as_int(note["iteration"])
    except (UserError, ValueError, KeyError, TypeError):
        return None


def _net_with(solver: Solver, output: str) -> int:
    """The index of the test net with an output of this name. UserError if there is none."""
    tested = zip(solver.test_nets, solver.param.test_iter, strict=True)
    known = [[*net.outputs] if batches else [] for net, batches in tested]
    for index, names in enumerate(known):
        if output in names:
            return index
    names = list(dict.fromkeys(name for outputs in known for name in outputs))
    if not names:
        raise UserError(f"--best {output}: {solver.file} tests no net")
    near = nearest(output, names)
    hint = f"did you mean {near}?" if near else f"there are {listed(names)}"
    raise UserError(f"--best {output}: no test net has such an output ({hint})")
