"""Sharding for commands that only run a net forward: ranks take batches in turn, and rank 0
gathers the results in the order of the batches."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from ... import log
from ...comm.job.job import Job, find_job
from ...errors import UserError
from ...layers.reading.feed import Feed
from ...net import Net
from ...solvers.testing import OutputBuffer
from ..launch import ranks
from ..options import Device, SharedOptions

T = TypeVar("T")
_log = logging.getLogger("osucaffe")
_PATIENCE = 0.25
"""Seconds after which outputs are read, even if few."""


@contextlib.contextmanager
def joined(options: SharedOptions, log_dir: str | None = None) -> Iterator[tuple[Device, Job]]:
    """Where this rank runs, and the job, whose ranks end together. Only rank 0 logs."""
    job = find_job()
    with job.together():
        ranks.check_size(options.ranks, job)
        ranks.join_parent(job)
        log.start(None if job.rank else log_dir)
        if job.rank:
            log.quieten()
        with np.errstate(all="ignore"):  # the log tells of nan
            yield ranks.assign_devices(options.device, job)[0], job


def split(net: Net, job: Job) -> None:
    """Let the net's data layers read only the batches of this rank's turns. UserError if they
    cannot."""
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
    compute those of their turns, nothing."""
    for first in range(0, batches, job.size):
        batch = first + job.rank
        results = job.collect(make(batch) if batch < batches else None)
        yield from results[: batches - first]


def outputs(
    net: Net, job: Job, batches: int, more: Callable[[], T], *, loss: bool = False
) -> Iterator[tuple[np.ndarray, T]]:
    """For each batch all numbers of the net's outputs (loss: followed by the loss), and the result
    of `more`. A single rank leaves them on the device for a while: while a GPU
    computes, the next is enqueued. Results are given between batches, one for each, so that what
    is made of them does not keep the device waiting."""
    stored = OutputBuffer(net, loss=loss)
    pending: list[T] = []

    def score(_: int) -> tuple[np.ndarray, T]:
        net.forward()
        stored.note()
        return stored.take()[0], more()

    if job.size > 1:
        yield from in_turn(job, batches, score)
        return
    ready: deque[tuple[np.ndarray, T]] = deque()
    start = last = time.monotonic()
    for batch in range(batches):
        net.forward()
        stored.note()
        pending.append(more())
        if batch == 1:
            net.backend.synchronize()
            _log.info("First two batches, with preparation: %.3f s", time.monotonic() - start)
        if stored.full or batch == batches - 1 or time.monotonic() - last > _PATIENCE:
            ready.extend(zip(stored.take(), pending, strict=True))
            pending, last = [], time.monotonic()
        if ready:
            yield ready.popleft()
    yield from ready
