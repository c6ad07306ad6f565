"""The solvers as scripts know them: step, solve, snapshots, callbacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import solvers as engine
from ..backends.tensor import Run
from ..proto import SolverParameter, read_solver
from ..solvers.process_group import ProcessGroup
from . import settings
from .net import Net, check_readable

Hook = Callable[[], object]


class Solver:
    """Trains the net of a solver prototxt, with the update rule that its `type` names.

    net, test_nets: what is trained and tested. iter: how many updates were made. Missing files
    raise RuntimeError, bad settings UserError.
    """

    rule: str | None = None
    """The update rule in place of the one that the file names."""

    def __init__(self, solver_file: str | Path) -> None:
        check_readable(solver_file)
        param = read_solver(solver_file)
        if self.rule is not None:
            param.type = self.rule
        seed = settings.next_seed()
        if param.random_seed < 0 and seed is not None:
            param.random_seed = seed
        self._hooks = _Hooks()
        self._solver = engine.Solver(
            param,
            settings.backend(),
            file=str(solver_file),
            inspectable=True,
            group=self._hooks,
        )
        self.net = self._hooks.net = Net.of(self._solver.net)
        self.test_nets = [Net.of(net) for net in self._solver.test_nets]

    @property
    def iter(self) -> int:
        return self._solver.iteration

    @property
    def lr(self) -> float:
        """The learning rate of the next update."""
        return self._solver.policy.rate(self._solver.iteration)

    @property
    def param(self) -> SolverParameter:
        return self._solver.param

    @property
    def type(self) -> str:
        return self._solver.param.type

    # -- training --------------------------------------------------------------------------------

    def step(self, iterations: int) -> None:
        """Make this many updates, with tests, displays and snapshots where they are due. Losses are
        smoothed over those of these updates, as Caffe's; what goes by them sees the earlier too."""
        self._solver.losses.shown.clear()
        self._run(self._solver.step, iterations)

    def solve(self, resume_file: str | Path | None = None) -> None:
        """Train up to max_iter, from a solver state if one is given."""
        if resume_file is not None:
            self.restore(resume_file)
        self._run(self._solver.solve)

    def apply_update(self) -> None:
        """Update the parameters from their gradients, with this iteration's learning rate."""
        solver = self._solver
        self._run(solver.optimizer.step, solver.policy.rate(solver.iteration), solver.iteration)

    def _run(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run the engine between two looks of the script at its arrays."""
        nets = [self.net, *self.test_nets]
        for net in nets:
            net.prepare()
        try:
            function(*arguments)
        finally:
            for net in nets:
                net.done()

    def add_callback(self, on_start: Hook, on_gradients_ready: Hook) -> None:
        """Call on_start() before each iteration, on_gradients_ready() before its update."""
        self._hooks.start.append(on_start)
        self._hooks.gradients.append(on_gradients_ready)

    # -- weights and snapshots -------------------------------------------------------------------

    def share_weights(self, net: Net) -> None:
        """Let the parameters of another net be those of the net that is trained."""
        net.share_with(self.net)

    def snapshot(self) -> None:
        """Write the model and the solver's state, named after snapshot_prefix and iteration."""
        self._run(self._solver.snapshot)

    def restore(self, state_file: str | Path) -> None:
        """Go on from a solver state, binary or HDF5."""
        check_readable(state_file)
        self._run(self._solver.restore, state_file)
        engines = [self._solver.net, *self._solver.test_nets]
        for net, restored in zip([self.net, *self.test_nets], engines, strict=True):
            net.use(restored)


class _Hooks(ProcessGroup):
    """Calls what a script asked for in the middle of an iteration."""

    def __init__(self) -> None:
        self.start: list[Hook] = []
        self.gradients: list[Hook] = []
        self.net: Net | None = None

    def step(self, solver: Any, *, accumulate: bool, update: bool) -> Run:
        passes = solver.net.as_step(accumulate=accumulate)

        def step() -> None:
            if not accumulate:
                self._call(self.start)
            passes()
            if update:
                self._call(self.gradients)
                solver.optimizer.run()

        return step

    def _call(self, hooks: list[Hook]) -> None:
        if hooks and self.net is not None:
            self.net.done()
            for hook in hooks:
                hook()
            self.net.prepare()


class SGDSolver(Solver):
    """Stochastic gradient descent with momentum."""

    rule = "SGD"


class NesterovSolver(Solver):
    """Nesterov's accelerated gradient."""

    rule = "Nesterov"


class AdaGradSolver(Solver):
    """AdaGrad."""

    rule = "AdaGrad"


class RMSPropSolver(Solver):
    """RMSProp."""

    rule = "RMSProp"


class AdaDeltaSolver(Solver):
    """AdaDelta."""

    rule = "AdaDelta"


class AdamSolver(Solver):
    """Adam."""

    rule = "Adam"


def get_solver(solver_file: str | Path) -> Solver:
    """The solver of the type that the file names."""
    return Solver(solver_file)
