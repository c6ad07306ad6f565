"""Owns what train lets a run keep, and the hint how to go on with one that was stopped."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import options

if TYPE_CHECKING:
    from ..solvers.keeping import Keeping
    from ..solvers.signals import Request

_STARTS = ("snapshot", "weights")
"""Options that say what a run starts from: a snapshot takes their place."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("what a run keeps")
    group.add_argument(
        "--keep",
        metavar="N",
        type=options.positive,
        default=0,
        help="keep the newest N snapshots of this run, and delete older ones (default: keep all)",
    )
    group.add_argument(
        "--best",
        metavar="OUTPUT",
        help="also keep the model with the best mean of this test output (accuracy, say), as "
        "PREFIX_best.caffemodel",
    )
    group.add_argument(
        "--patience",
        metavar="N",
        type=options.positive,
        default=0,
        help="end training after N tests in a row that were not better than the best; needs --best",
    )


def make(args: argparse.Namespace, asked: Request) -> Keeping:
    """What does as the options say. UserError for options that lack others."""
    from ..errors import UserError
    from ..solvers.keeping import Keeping

    if args.patience and not args.best:
        raise UserError("--patience needs --best OUTPUT: say which test output is to get better")
    return Keeping(asked, best=args.best, patience=args.patience, count=args.keep)


def log_hint(keeping: Keeping) -> None:
    """Log the command that goes on from the newest snapshot."""
    if keeping.last:
        logging.getLogger("osucaffe").info(
            "Go on with: %s", go_on(sys.argv[1:], keeping.last.state)
        )


def go_on(arguments: Sequence[str], state: str) -> str:
    """The command with these arguments, but from a snapshot's state."""
    kept, skip = [], False
    for word in arguments:
        name, given, _ = word.lstrip("-").partition("=")
        if skip:
            skip = False
        elif word.startswith("-") and name in _STARTS:
            skip = not given
        else:
            kept.append(word)
    return shlex.join(["osucaffe", *kept, f"--snapshot={state}"])
