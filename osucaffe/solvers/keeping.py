"""Owns what a run keeps: the best model by a test's output, its newest snapshots; and when it ends
since nothing gets better any more."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..files import write_bytes
from ..proto import SolverParameter, write_weights
from .observer import Observer, Snapshot, TestResult
from .signals import NONE, STOP, Request

if TYPE_CHECKING:
    from .solver import Solver

logger = logging.getLogger("osucaffe")


class Keeping(Observer):
    """Watches the tests and snapshots of a solver, once `begin` has told it which.

    best: an output of a test net. Whenever its mean is the best so far, the model is written to
    PREFIX_best.caffemodel, and PREFIX_best.json says how good it is. Of losses the lowest is the
    best, of others the highest. patience: ask for a stop after so many tests in a row that were no
    better (0: never). count: keep so many snapshots of this run, and delete older ones (0: all).
    asked: what else asks the solver to stop. last: the newest snapshot that this process wrote.
    """

    def __init__(
        self, asked: Request, *, best: str | None = None, patience: int = 0, count: int = 0
    ) -> None:
        self._asked = asked
        self._name, self._patience, self._count = best, patience, count
        self._snapshots: list[Snapshot] = []
        self._value: float | None = None
        self._worse = 0
        self._waits_enough = False
        self.last: Snapshot | None = None

    def begin(self, solver: Solver) -> None:
        """Watch this solver; go on where it goes on from a snapshot. UserError if no test net has
        the output."""
        self._solver = solver
        self._prefix: str = solver.param.snapshot_prefix
        self._suffix = ".h5" if solver.param.snapshot_format == SolverParameter.HDF5 else ""
        if self._name:
            self._net, self._lowest = self._find(self._name)
            if not self._prefix:
                raise UserError(f"{solver.file}: set snapshot_prefix: the best model goes there")
        if solver.iteration:
            self._go_on(solver.iteration)

    def request(self) -> str:
        """What the solver is to do (see `signals.py`)."""
        asked = self._asked()
        return STOP if asked == NONE and self._waits_enough else asked

    def on_test(self, event: TestResult) -> None:
        """Write the model if it is the best."""
        if self._name and event.net == self._net:
            means = [each.value for each in event.outputs if each.name == self._name]
            self._judge(event.iteration, sum(means) / len(means))
        # Not before: the nets behind it are to be tested too.
        if event.net == len(self._solver.test_nets) - 1 and 0 < self._patience <= self._worse:
            if not self._waits_enough:
                logger.info(
                    "%s was no better in %d tests in a row: training ends", self._name, self._worse
                )
            self._waits_enough = True

    def on_snapshot(self, event: Snapshot) -> None:
        """Delete those that are too many; a state first, as it needs its model."""
        self.last = event
        self._snapshots = [each for each in self._snapshots if each != event] + [event]
        while 0 < self._count < len(self._snapshots):
            old = self._snapshots.pop(0)
            for file in old.state, old.model:
                with contextlib.suppress(OSError):
                    Path(file).unlink()
            logger.info("Deleted the snapshot of iteration %d (--keep)", old.iteration)

    def _find(self, name: str) -> tuple[int, bool]:
        """The first test net with this output, and whether it is a loss."""
        nets = self._solver.test_nets
        for index, net in enumerate(nets):
            if name in net.outputs:
                return index, bool(net.loss_weight(name)) or "loss" in name.lower()
        names = ", ".join(dict.fromkeys(each for net in nets for each in net.outputs))
        raise UserError(
            f"{self._solver.file}: no test net has an output {name}"
            + (f": they have {names}" if names else ", as there is no test net: set test_iter")
        )

    def _judge(self, iteration: int, value: float) -> None:
        better = self._value is None or (
            value < self._value if self._lowest else value > self._value
        )
        if value == value and better:
            self._value, self._worse = value, 0
            model = f"{self._prefix}_best.caffemodel{self._suffix}"
            write_weights(model, self._solver.net.to_proto())
            logger.info(
                "Best %s so far: %g, at iteration %d: %s", self._name, value, iteration, model
            )
            self._write(iteration)
        else:
            self._worse += 1

    @property
    def _note(self) -> Path:
        return Path(f"{self._prefix}_best.json")

    def _write(self, iteration: int) -> None:
        found = {"output": self._name, "value": self._value, "iteration": iteration}
        write_bytes(self._note, (json.dumps(found) + "\n").encode())

    def _go_on(self, iteration: int) -> None:
        """Take over what the run had before this iteration."""
        prefix = Path(self._prefix)
        pattern = re.compile(re.escape(prefix.name) + r"_iter_(\d+)\.solverstate(\.h5)?")
        for path in prefix.parent.glob("*_iter_*.solverstate*"):
            if (match := pattern.fullmatch(path.name)) and int(match[1]) <= iteration:
                model = str(path).replace(".solverstate", ".caffemodel")
                self._snapshots.append(Snapshot(int(match[1]), model, str(path)))
        self._snapshots.sort(key=lambda each: each.iteration)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._note.read_text())
            if found["output"] == self._name and found["iteration"] <= iteration:
                self._value = float(found["value"])
