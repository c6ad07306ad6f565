"""Owns how ranks share the batches of a command that only runs a net forward: in turn, and what
each finds comes together on rank 0 in the order of the batches."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from ..errors import UserError
from . import options, ranks

if TYPE_CHECKING:
    from ..comm.job import Job
    from ..net import Net

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare where it runs, and on how many ranks."""
    options.add_device(parser, 'the number of the GPU; "0,1" or "all": a rank on each')
    group = parser.add_argument_group("several ranks", "They share the batches; rank 0 tells.")
    group.add_argument(
        "--ranks",
        metavar="N",
        type=options.positive,
        help="start so many ranks on this machine (mpiexec or srun may do it, too)",
    )
    parser.set_defaults(servers=0)


@contextlib.contextmanager
def joined(args: argparse.Namespace) -> Iterator[tuple[argparse.Namespace, Job]]:
    """The options as they are for this rank, and the job, whose ranks end together. Becomes mpiexec
    first, if the options ask for ranks. The log is rank 0's."""
    from .. import log
    from ..comm.job import find_job

    ranks.launch(args, lambda: options.check_device(args))
    job = find_job()
    with job.together():
        ranks.check_size(args, job)
        ranks.take_terminal(job)
        log.start(None if job.rank else getattr(args, "log_dir", None))
        if job.rank:
            log.quieten()
        yield ranks.place(args, job)[0], job


def split(net: Net, job: Job) -> None:
    """Let the layers that bring the net's data bring the batches of this rank's turns only.
    UserError where they cannot."""
    from ..layers.feed import Feed

    if job.size == 1:
        return
    for node in net.nodes:
        layer = node.layer
        if isinstance(layer, Feed):
            layer.split(job.rank, job.size)
        elif not node.bottom and layer.type == "Python":
            raise UserError(
                f'layer "{layer.name}" (Python) brings the net\'s data: ranks cannot share its '
                "batches; leave out --ranks, and give one GPU"
            )


def in_turn(job: Job, batches: int, make: Callable[[int], T]) -> Iterator[T]:
    """On rank 0, what `make(batch)` returns for each batch, in their order; on the others, which
    make those of their turns, nothing."""
    for first in range(0, batches, job.size):
        batch = first + job.rank
        found = job.collect(make(batch) if batch < batches else None)
        yield from found[: batches - first]
