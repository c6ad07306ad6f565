"""`oc.Solver`: training in steps, whose history and net can be looked at in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import solvers
from ..data.config import DataConfig
from ..errors import UserError, nearest
from ..proto import SolverParameter, parse_text, read_net, read_solver, upgrade_solver
from ..solvers.nets import TRAIN, testing_nets, training_net
from ..solvers.observer import Observer
from ..solvers.signals import NONE, STOP
from . import devices
from .batches import Batches, Data
from .history import History, Plot, ProgressLine, Row, html_rows, tested, words
from .net import Net, is_path


class Solver:
    """Trains the net of a solver's prototxt: `step(100)`, or `solve()` to the end.

    solver: a path, the text, or a SolverParameter. gpu, precision, threads: as of Net. weights:
    model files to begin from; resume: a .solverstate to go on from, or "auto", the newest one.
    observers: called while it trains (see `Observer`). data, test_data: batches for the net in
    place of its data layers: any iterable of tuples or dicts of arrays, such as a PyTorch
    DataLoader, a function that gives one for each pass, or one tuple of arrays of all records.
    inspectable: have all blobs of the net readable. progress: show a line of it (None:
    in a terminal and a notebook). settings: fields of the solver in place of what the file says:
    max_iter=100, base_lr=0.1. UserError for what is wrong with any of them.
    """

    def __init__(
        self,
        solver: Any,
        *,
        gpu: int | None = None,
        precision: str | None = None,
        threads: int | None = None,
        weights: str | Path | Sequence[str | Path] = (),
        resume: str | Path | None = None,
        observers: Sequence[Observer] = (),
        data: Data | None = None,
        test_data: Data | None = None,
        inspectable: bool = False,
        progress: bool | None = None,
        **settings: Any,
    ) -> None:
        self.file = str(solver) if is_path(solver) else "the solver"
        param = _read(solver)
        change(param, settings)
        fed = {"TRAIN": data, "TEST": test_data}
        batches = {
            phase: Batches(each, _NAMES[phase]) for phase, each in fed.items() if each is not None
        }
        self._history = History()
        self._progress = ProgressLine(self._history, progress)
        if wrong := [each for each in observers if not isinstance(each, Observer)]:
            raise UserError(f"{wrong[0]!r}: no observer: inherit from oc.Observer")
        self._stop = False
        files = [weights] if isinstance(weights, str | Path) else weights
        self.engine = solvers.Solver(
            _fed(param, self.file, batches) if batches else param,
            devices.backend(gpu, precision, threads),
            file=self.file,
            request=self._request,
            observers=[self._history, self._progress, *observers],
            inspectable=inspectable,
            weights=list(map(str, files)),
            resume=resume,
            data_config=DataConfig(inputs=_inputs(batches) if batches else None),
        )
        self.net = Net.of(self.engine.net)

    @property
    def iteration(self) -> int:
        """The number of updates so far."""
        return self.engine.iteration

    @property
    def history(self) -> list[Row]:
        """A row for each iteration that was displayed or tested (for `pandas.DataFrame`)."""
        return self._history.rows

    def step(self, iterations: int = 1) -> None:
        """Make this many updates, with tests, displays and snapshots where they are due."""
        self._run(lambda: self.engine.step(iterations), self.iteration + iterations)

    def solve(self) -> None:
        """Train up to max_iter."""
        self._run(self.engine.solve, self.engine.param.max_iter)

    def stop(self) -> None:
        """End `step` or `solve` after this iteration: for observers, and other threads."""
        self._stop = True

    def _request(self) -> str:
        return STOP if self._stop else NONE

    def test(self) -> dict[str, float]:
        """Test now: the means of the test nets' outputs over their test_iter batches."""
        with self.net.running():
            results = self.engine.test_all()
        return {name.partition(" ")[2]: v for each in results for name, v in tested(each).items()}

    def snapshot(self) -> str:
        """Write the weights and the state. Returns the path of the weights."""
        with self.net.running():
            return self.engine.snapshot().model

    def restore(self, state: str | Path) -> None:
        """Go on from a snapshot's state."""
        with self.net.running():
            self.engine.restore(state)
        self.net = Net.of(self.engine.net)

    def plot(self) -> Plot:
        """Curves of the history."""
        return Plot(self.history)

    def __reduce__(self) -> Any:
        raise UserError("a solver cannot be copied: make another, from its snapshot (resume=)")

    def _run(self, train: Callable[[], None], end: int) -> None:
        with self.net.running(), np.errstate(all="ignore"):
            self._stop = False
            self._progress.begin(self.iteration, end)
            try:
                train()
            finally:
                self._progress.end(self.iteration)

    def __repr__(self) -> str:
        param, said = self.engine.param, words(self.history)
        most = f" of {param.max_iter:,}" if param.max_iter > 0 else ""
        text = f'Solver of net "{self.net.name}" ({param.type}, base_lr {param.base_lr:g})'
        return f"{text}: iteration {self.iteration:,}{most}{', ' if said else ''}{said}"

    def _repr_html_(self) -> str:
        return html_rows(self.history, repr(self))


_NAMES = {"TRAIN": "data", "TEST": "test_data"}
"""The arguments with the batches of each phase."""


def _read(solver: Any) -> SolverParameter:
    if is_path(solver):
        return read_solver(solver)
    if isinstance(solver, str):
        solver = parse_text(solver, SolverParameter, "the solver's text")
    if not isinstance(solver, SolverParameter):
        raise UserError(
            f"{solver!r}: not a solver: give a prototxt's path or text, or a SolverParameter"
        )
    return upgrade_solver(solver)


def change(param: SolverParameter, settings: dict[str, Any]) -> None:
    """Set fields. UserError for what is none, or has another type."""
    known = SolverParameter.DESCRIPTOR.fields_by_name
    for name, value in settings.items():
        if name not in known:
            near = nearest(name, known)
            hint = f" (did you mean {near}?)" if near else ""
            raise UserError(f"{name}: not an option, nor a setting of a solver{hint}")
        param.ClearField(name)
        try:
            param.MergeFrom(SolverParameter(**{name: value}))
        except (TypeError, ValueError) as error:
            raise UserError(f"{name}={value!r}: {error}") from None


def _fed(param: SolverParameter, file: str, batches: dict[str, Batches]) -> SolverParameter:
    """The solver whose nets take batches in place of what their data layers read."""
    chosen = [("TRAIN", training_net(param, file, read_net))]
    chosen += [("TEST", choice) for choice in testing_nets(param, file, read_net)]
    nets = [
        batches[phase].replace_readers(choice.chosen(phase))
        if phase in batches
        else choice.chosen(phase)
        for phase, choice in chosen
    ]
    made = SolverParameter()
    made.CopyFrom(param)
    for field in (*TRAIN, "test_net", "test_net_param"):
        made.ClearField(field)
    made.train_net_param.CopyFrom(nets[0])
    made.test_net_param.extend(nets[1:])
    return made


def _inputs(batches: dict[str, Batches]) -> Callable[[Any], Batches]:
    def stream(layer: Any) -> Batches:
        if layer.phase not in batches:
            layer.fail("top", f"nothing fills it: give {_NAMES[layer.phase]}=")
        return batches[layer.phase]

    return stream
