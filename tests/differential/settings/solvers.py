"""Training by random solver settings against NumPy in float64, written from Caffe's definitions.

    python -m tests.differential.settings.solvers --seconds 600 --seed 1

Compared are weights, history, learning rates, losses and test losses. How near they must come is
measured: the reference runs again with every intermediate value off by about a rounding. A snapshot
on the way must go on as the run did, to the bit.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from osucaffe.proto import NetParameter, SolverParameter, parse_text
from osucaffe.solvers import Solver
from osucaffe.solvers.observer import Display, Observer, TestResult
from tests.solvers.runs import Unclean, assert_same

from ..search import Case, Kind, main
from .solver_cases import DEFAULTS, draw, net_text, read_data, show, solver_text, write_data
from .solver_reference import ROUNDING, Course, compare, courses, diverges


class Notes(Observer):
    """Notes a course."""

    def __init__(self) -> None:
        self.course = Course()

    def on_display(self, event: Display) -> None:
        self.course.displays.append((event.iteration, event.rate, event.loss))

    def on_test(self, event: TestResult) -> None:
        assert event.loss is not None
        self.course.tests.append((event.iteration, event.loss))


def make_solver(case: Case, folder: Path, notes: Notes | None = None, **options: Any) -> Solver:
    param = parse_text(solver_text(case), SolverParameter)
    param.snapshot_prefix = str(folder / "run")
    param.net_param.CopyFrom(parse_text(net_text(case, str(folder / "list")), NetParameter))
    return Solver(
        param,
        Unclean(case["run.dtype"], threads=1, onednn=case["run.onednn"]),
        inspectable=case["run.inspectable"],
        loss_scale=case["run.loss_scale"],
        observers=[notes] if notes else [],
        **options,
    )


def read_weights(solver: Solver) -> list[np.ndarray]:
    return [solver.backend.read(each.blob.data) for each in solver.net.parameters]


def check(case: Case) -> None:
    """Train, compare with the reference, and go on from a snapshot on the way."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(case, folder)
        notes = Notes()
        run = make_solver(case, folder, notes)
        references = list(courses(case, read_data(folder), read_weights(run)))
        if diverges(references[0]):
            return
        run.step(case["run.stop"])
        state = run.snapshot().state
        run.step(case["run.iterations"] - case["run.stop"])
        notes.course.weights, notes.course.history = read_weights(run), run.optimizer.read_history()
        compare(notes.course, references, ROUNDING[case["run.dtype"]])
        check_resume(case, folder, state, run)


def check_resume(case: Case, folder: Path, state: str, run: Solver) -> None:
    """A snapshot goes on as the run has, to the bit."""
    if case["run.resume"] == "new":
        again = make_solver(case, folder, resume=state)
    elif case["run.resume"] == "other":
        again = make_solver(case | {"random_seed": 9}, folder)
        again.step(2)
        again.restore(state)
    else:
        again, losses = run, run.loss
        before = make_solver(case, folder, resume=run.snapshot().state)
        run.restore(state)
        run.step(case["run.iterations"] - case["run.stop"])
        assert_same(run, before)
        assert run.loss == losses or math.isnan(losses), f"resumed losses: {run.loss}, not {losses}"
        return
    again.step(case["run.iterations"] - case["run.stop"])
    assert_same(again, run)


KIND = Kind("tests.differential.settings.solvers", draw, check, show, DEFAULTS)

if __name__ == "__main__":
    sys.exit(main(KIND))
