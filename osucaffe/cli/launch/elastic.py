"""Owns `train --elastic`: a run of which a rank died begins again on those that remain, with the
same global batch."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import UserError
from . import server_options
from .restarts import Attempt

if TYPE_CHECKING:
    from ...solvers.process_group import ProcessGroup


def add_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the option, and what a run that began again is told."""
    group.add_argument(
        "--elastic",
        action="store_true",
        help="with --max_restarts: restart on the ranks that are left, on as many as divide the "
        "global batch, which stays the same",
    )
    group.set_defaults(batches_of=1)


def check(args: argparse.Namespace) -> None:
    """UserError where other options do not go with --elastic, or it lacks one."""
    if not args.elastic:
        return
    if not args.max_restarts:
        raise UserError("--elastic is for runs that begin again: give --max_restarts N, too")
    others = {"--servers": server_options.count(args), "--ranks_per_gpu": args.ranks_per_gpu}
    if other := next((name for name, given in others.items() if given), None):
        raise UserError(f"--elastic does not go with {other}: leave one of them out")


def attempts(
    args: argparse.Namespace, ranks: int, gpus: Sequence[str], command: Callable[..., list[str]]
) -> Iterator[Attempt]:
    """The runs, the first on so many ranks, each other on those that remain of the one before.

    command: makes the command from a number of ranks and more options. UserError.
    """
    of = ranks if args.scal == "weak" else 1
    sizes = _global_batches(args, ranks, of)
    yield Attempt(command(ranks), {})
    while True:
        ranks = remaining(ranks, sizes)
        options = ["--ranks", str(ranks)]
        if args.gpu not in (None, "all"):
            options += ["--gpu", ",".join(gpus[:ranks])]
        yield Attempt(command(ranks, *options), {"ranks": ranks, "batches_of": of})


def remaining(ranks: int, sizes: Sequence[int]) -> int:
    """How many ranks go on when one of them died: as many as divide each of the global batches."""
    fewer = range(max(ranks - 1, 1), 0, -1)
    return next(count for count in fewer if all(size % count == 0 for size in sizes))


def alone(args: argparse.Namespace) -> ProcessGroup | None:
    """The group of a rank that is alone; None where it has its own batches only."""
    if args.batches_of == 1:
        return None
    from ...parallel.batch import Alone

    return Alone(args.batches_of)


def _global_batches(args: argparse.Namespace, ranks: int, of: int) -> list[int]:
    """One a layer that reads data. UserError where one has no batch size to divide."""
    from ...parallel.batch import divide_batches, readers
    from ...proto import read_net, read_solver
    from ...solvers.nets import training_net

    net = training_net(read_solver(Path(args.solver)), args.solver, read_net).param
    divided = divide_batches(net, ranks, of=of)
    return [message.batch_size * ranks for _, message in readers(divided)]
