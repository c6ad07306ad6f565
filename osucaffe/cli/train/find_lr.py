"""`osucaffe train --find_lr`: a learning rate for a solver, from a short training with growing
rates (Smith, Cyclical Learning Rates for Training Neural Networks, 2015, section 3.3)."""

from __future__ import annotations

import contextlib
import math
import shlex
import sys
from pathlib import Path

import numpy as np

from ... import __version__, log
from ...api.curves import Points, panel, smooth
from ...errors import UserError
from ...files import write_bytes
from ...options.flags import excluded
from ...parallel.tuning import quieten
from ...proto import SolverParameter
from ...solvers.observer import Display, Observer
from ...solvers.signals import STOP, Signals
from ...solvers.solver import Solver
from .. import loading
from ..reports.report_page import page
from .options import Train

_MIN_RATE, _MAX_RATE = 1e-7, 10.0
_PER_DECADE = 25
"""Rates that are tried , one per iteration, and how many of them while the rate grows tenfold."""
_BELOW = 1e-4
"""The sweep begins at the latest at this part of base_lr: losses that are sums need tiny rates."""
_DIVERGED = 4.0
"""Times the least smoothed loss that end the sweep."""
_DECAY = 0.9
"""Of the running mean that is looked at for this."""
_FALL = 0.02
"""The least fall that counts, as a part of the loss at the start."""


def check(options: Train, file: str, ranks: int = 1) -> None:
    """UserError for options that do not go together."""
    page = Path(file)
    if page.suffix != ".html" or not page.parent.is_dir():
        raise UserError(f"--find_lr {page}: give a page.html to write, in a folder that is there")
    if options.max_iter and options.max_iter < _PER_DECADE:
        raise UserError(f"--max_iter {options.max_iter}: --find_lr needs {_PER_DECADE} iterations")
    gpu = options.device.gpu
    given = excluded(options, "--find_lr") or ("mpiexec" if ranks > 1 else None)
    if gpu and not gpu.isdecimal():
        given = given or f"--gpu {gpu}"
    if given:
        raise UserError(f"--find_lr runs on its own, on one rank: remove {given}")


def run(options: Train, file: str, param: SolverParameter) -> None:
    """Sweep, propose, write the page. UserError where no rate can be proposed."""
    handler = log.start()
    log.quieten()
    base = max(param.base_lr, *param.stagelr, 0.0)
    least = min(_MIN_RATE, base * _BELOW) if base > 0 else _MIN_RATE
    count = options.max_iter or round(_PER_DECADE * math.log10(_MAX_RATE / least))
    with contextlib.ExitStack() as stack:
        sweep = _Sweep(stack.enter_context(Signals()))
        solver = Solver(
            _growing(param, least, count),
            loading.make_backend(options.device),
            file=options.solver,
            request=sweep.request,
            observers=[sweep],
            loss_scale=options.loss_scale,
            weights=options.weights,
            strict=options.strict,
            data_config=options.data,
        )
        loading.check_fed(solver.net, options.solver)
        if not solver.net.arena.learned or solver.net.total.array is None:
            what = "no loss" if solver.net.arena.learned else "no layer that learns"
            raise UserError(
                f"{options.solver}: its net has {what}: nothing to find a learning rate for"
            )
        solver.losses.lost = True  # that it diverges is no news
        if sys.stderr.isatty() and not (options.no_progress or log.quiet):
            from .live_display import Live

            solver.observers.append(stack.enter_context(Live(solver, handler)))
        with np.errstate(all="ignore"):
            solver.step(count)
        solver.close()
    if sweep.signals.stopped_by:
        raise KeyboardInterrupt
    points = drawn(sweep.points)
    rate = propose(points)
    curves = {"train loss": points}
    if rate:
        curves[f"proposed: {rate:g}"] = [min(points, key=lambda p: abs(p[0] - math.log10(rate)))]
    figure = panel("Loss", curves, "learning rate", decades=True)
    title = f"{options.solver}: learning rates"
    write_bytes(file, page(title, f"osucaffe {__version__}", [("Sweep", figure)]).encode())
    tried = f"{len(sweep.points)} learning rates from {least:.3g} on , one per iteration"
    if rate is None:
        raise UserError(
            f"{options.solver}: the loss falls at none of {tried} (see {file}): look at the "
            "data, its labels and its scale, and at each lr_mult; or give larger batches. (A net "
            "that has learnt its data has nothing left to learn.)"
        )
    command = ["osucaffe", "train", "--solver", options.solver]
    command += ["--weights", ",".join(options.weights)] if options.weights else []
    field = "stagelr" if param.lr_policy == "multifixed" else "base_lr"
    print(
        f"tried {tried}: {file} shows the losses\n\nproposed in {options.solver}, in place of "
        f"{base:g}:\n\n{field}: {rate:g}\n\nthen:\n\n{shlex.join(command)}"
    )


class _Sweep(Observer):
    """Notes the loss of each rate, by its decimal logarithm, and stops when it diverges."""

    def __init__(self, signals: Signals) -> None:
        self.signals, self.points = signals, list[tuple[float, float]]()
        self._mean, self._start, self._least, self._diverged = 0.0, -math.inf, math.inf, False

    def on_display(self, event: Display) -> None:
        """Compare the running mean with the least so far, and with the first."""
        self.points.append((math.log10(event.rate), event.loss))
        self._mean = _DECAY * self._mean + (1 - _DECAY) * event.loss
        mean = self._mean / (1 - _DECAY ** len(self.points))
        if len(self.points) <= _PER_DECADE:
            self._start = max(self._start, mean)
        self._least = min(self._least, mean)
        self._diverged = not mean <= max(self._start, _DIVERGED * self._least)

    def request(self) -> str:
        return STOP if self._diverged else self.signals.request()


def drawn(points: Points) -> list[tuple[float, float]]:
    """Finite losses only, and large ones cut, so that the others can be told apart."""
    finite = [(x, y) for x, y in points if math.isfinite(y)]
    most = finite[0][1] + (_DIVERGED - 1) * abs(finite[0][1]) if finite else 0.0
    return [(x, min(y, most)) for x, y in finite]


def propose(points: Points) -> float | None:
    """A third of the rate at which the smoothed loss is least; None where it hardly falls.

    points: the rates' decimal logarithms, and losses. Smith's bounds are where the loss begins to
    fall and where it gets rough: solvers of all types do well at half a decade below the latter.
    """
    if not points:
        return None
    smoothed = smooth(points)
    start, (at, least) = smoothed[0][1], min(smoothed, key=lambda point: point[1])
    noise = float(np.std([y for _, y in points[:_PER_DECADE]]))
    if start - least <= max(_FALL * abs(start), noise):
        return None
    return float(f"{10**at / 3:.1e}")


def _growing(param: SolverParameter, least: float, count: int) -> SolverParameter:
    """The settings with a rate that grows from iteration to iteration, and each loss displayed."""
    growing = quieten(param)
    for field in ("warmup_iter", "rampup_interval", "min_lr"):
        growing.ClearField(field)
    growing.base_lr, growing.lr_policy, growing.max_iter = least, "exp", count
    growing.gamma = (_MAX_RATE / least) ** (1 / max(count - 1, 1))
    growing.display = growing.average_loss = 1
    return growing
