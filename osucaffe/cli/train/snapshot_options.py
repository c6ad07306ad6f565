"""The options of a training run for what it keeps, when it ends, and how it is
resumed."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable
from pathlib import Path

from ... import log
from ...errors import UserError
from ...solvers.signals import Signals
from ...solvers.snapshots.retention import KeepBest, KeepNewest
from ...solvers.snapshots.snapshot import best_model, named
from ...solvers.solver import Solver
from .options import Keep

logger = logging.getLogger("osucaffe")


def check(options: Keep) -> None:
    """UserError for options that cannot be combined."""
    if options.patience and not options.best:
        raise UserError("--patience counts tests without a better value: give --best OUTPUT")


def watch(solver: Solver, options: Keep, signals: Signals) -> None:
    """Attach the observers for these options. UserError if no test has the output named by
    --best."""
    if options.best:
        best = KeepBest(solver, options.best, options.patience or 0)
        solver.observers.append(best)
        solver.request = best.request(signals.request)
    if options.keep and not solver.group.rank:
        solver.observers.append(KeepNewest(solver, options.keep))


def tell_how_to_go_on(solver: Solver, signals: Signals) -> None:
    """Log the command that resumes, if a signal stopped the run and it has a snapshot; and those
    for the next steps, if it is done."""
    event = named(solver.param, solver.iteration)
    if solver.group.rank or solver.losses.lost:
        return
    if solver.stopped and signals.stopped_by:
        if Path(event.state).exists():
            command = shlex.join(["osucaffe", *resuming(log.command)])
            logger.info("To resume from iteration %d: %s", solver.iteration, command)
        return
    end = ".h5" if event.model.endswith(".h5") else ""
    best = Path(best_model(solver.param.snapshot_prefix, end))
    model, net = next(filter(Path.exists, (best, Path(event.model))), None), solver.param.net
    if model is None or not net or not solver.test_nets:
        return
    steps = [["test", "--model", net, "--weights", str(model)]]
    if (deploy := Path(net).parent / "deploy.prototxt").exists():
        steps.append(["classify", "--model", str(deploy), "--weights", str(model), "PHOTOS"])
    for step in (*steps, ["report", solver.file]):
        logger.info("Next: %s", shlex.join(["osucaffe", *step]))


def resuming(words: Iterable[str]) -> list[str]:
    """The arguments of a command that resumes the run of these arguments."""
    arguments: list[str] = []
    left_out = False
    for word in words:
        if left_out:  # the value of an option that is left out
            left_out = False
            continue
        option, equals, _ = word.partition("=")
        if option.startswith("-") and option.lstrip("-") in ("snapshot", "weights"):
            left_out = not equals
            continue
        arguments.append(word)
    return [*arguments, "--snapshot=auto"]
