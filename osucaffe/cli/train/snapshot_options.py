"""Owns the options of a training run for what it keeps and when it ends, and how it is gone on
with."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from ...errors import UserError
from ...solvers.signals import Signals
from ...solvers.snapshots.retention import KeepBest, KeepNewest
from ...solvers.snapshots.snapshot import named
from ...solvers.solver import Solver

logger = logging.getLogger("osucaffe")


def check(args: argparse.Namespace) -> None:
    """UserError for options that do not go together."""
    if args.patience and not args.best:
        raise UserError("--patience counts tests without a better value: give --best OUTPUT")


def watch(solver: Solver, args: argparse.Namespace, signals: Signals) -> None:
    """Begin to keep what the options ask for. UserError where no test has an output as --best
    names."""
    if args.best:
        best = KeepBest(solver, args.best, args.patience or 0)
        solver.observers.append(best)
        solver.request = best.request(signals.request)
    if args.keep and not solver.group.rank:
        solver.observers.append(KeepNewest(solver, args.keep))


def tell_how_to_go_on(solver: Solver, signals: Signals) -> None:
    """Tell a run that a signal stopped, and that has a snapshot, the command that goes on."""
    state = Path(named(solver.param, solver.iteration).state)
    if solver.stopped and signals.stopped_by and not solver.group.rank and state.exists():
        command = shlex.join(["osucaffe", *resuming(sys.argv[1:])])
        logger.info("To resume from iteration %d: %s", solver.iteration, command)


def resuming(words: Iterable[str]) -> list[str]:
    """The words of a command that goes on where the one of these words stopped."""
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
